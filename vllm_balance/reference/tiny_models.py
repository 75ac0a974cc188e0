"""Make tiny models with random weights, offline: a mixture of experts and a dense one.

    python -m vllm_balance.reference.tiny_models --out DIR [--model moe|dense|all]

The weights are float32 and seeded: equal versions of torch, transformers and
tokenizers write equal bytes. Scales are chosen so that greedy text keeps changing and
the best token leads clearly, which makes two implementations comparable token by token.
"""

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

STAMP = "tiny-model.json"
"""The file that marks a folder as made by this module, and says from what."""

FORMAT = 1
"""Increase when the models change, so that old folders are made anew."""

SEED = 0
END, START_TURN, END_TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

SHAPE = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,  # the smallest that vLLM's CPU attention takes
    "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
    "eos_token_id": 0,
    "pad_token_id": 0,
}


def make_tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token for each of the 256 bytes, and three special ones before them."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = [END, START_TURN, END_TURN]
    vocabulary = {token: i for i, token in enumerate([*special, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(special)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END,
        pad_token=END,
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )


def make_moe(vocabulary: int) -> torch.nn.Module:
    """A Qwen3 mixture of experts: 2 layers, 8 experts of which a token uses 2."""
    config = transformers.Qwen3MoeConfig(
        vocab_size=vocabulary,
        moe_intermediate_size=64,
        num_experts=8,
        num_experts_per_tok=2,
        decoder_sparse_step=1,
        norm_topk_prob=True,
        **SHAPE,
    )
    return transformers.Qwen3MoeForCausalLM(config)


def make_dense(vocabulary: int) -> torch.nn.Module:
    """A dense Qwen3 of 2 layers."""
    config = transformers.Qwen3Config(vocab_size=vocabulary, **SHAPE)
    return transformers.Qwen3ForCausalLM(config)


MODELS: dict[str, Callable[[int], torch.nn.Module]] = {
    "moe": make_moe,
    "dense": make_dense,
}


def randomise(model: torch.nn.Module, seed: int) -> None:
    """Draw every weight matrix anew; norms keep their ones.

    Embeddings are N(0, 1), other matrices N(0, (GAIN / √inputs)²): each layer's output
    then weighs as much as its input, so that the next token depends on the whole
    context and not on the last token alone.
    """
    generator = torch.Generator().manual_seed(seed)
    for name, weight in sorted(model.named_parameters()):
        if weight.dim() < 2:
            continue
        scale = 1.0 if "embed" in name else GAIN / weight.shape[-1] ** 0.5
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)


GAIN = 2.0


def stamp(name: str) -> dict[str, object]:
    """What the bytes of model ``name`` depend on."""
    packages = ("torch", "transformers", "tokenizers", "safetensors")
    return {
        "made_by": "vllm_balance.reference.tiny_models",
        "model": name,
        "format": FORMAT,
        "seed": SEED,
        "versions": {package: version(package) for package in packages},
    }


def make(name: str, out: Path) -> Path:
    """Make model ``name`` in ``out / name``, unless it is there already.

    Raises:
        FileExistsError: that folder exists and this module did not make it.
    """
    folder = out / name
    wanted = stamp(name)
    if folder.exists():
        try:
            found = json.loads((folder / STAMP).read_text())
        except (OSError, ValueError):
            found = {}
        if found == wanted:
            return folder
        if found.get("made_by") != wanted["made_by"]:
            raise FileExistsError(
                f"{folder}: exists and was not made by this command (no {STAMP}); "
                "choose another --out or remove it"
            )
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{name}-") as temporary:
        new = Path(temporary) / name
        tokenizer = make_tokenizer()
        model = MODELS[name](len(tokenizer)).float().eval()
        randomise(model, SEED)
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        (new / STAMP).write_text(json.dumps(wanted, indent=2) + "\n")
        if folder.exists():
            shutil.rmtree(folder)
        new.rename(folder)
    return folder


def main() -> int:
    """Make the models that the command line asks for, and print their folders."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="parent folder")
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
    arguments = parser.parse_args()
    names = list(MODELS) if arguments.model == "all" else [arguments.model]
    try:
        for name in names:
            print(make(name, arguments.out))
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
