"""Make tiny models with random weights, offline.

    python -m vllm_balance.reference.tiny_models --out DIR [--model NAME]

``moe`` is a mixture of experts, ``dense`` is none. ``large`` is a mixture of experts
whose prompts really take time on a CPU core: 87 million parameters unless options say
otherwise. It is made only by its name.

The weights are float32 and seeded: equal versions of torch, transformers and
tokenizers write equal bytes. Scales are chosen so that greedy text keeps changing and
the best token leads clearly, which makes two implementations comparable token by token.
"""

import argparse
import inspect
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

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
    return randomised(transformers.Qwen3MoeForCausalLM(config))


def make_dense(vocabulary: int) -> torch.nn.Module:
    config = transformers.Qwen3Config(vocab_size=vocabulary, **SHAPE)
    return randomised(transformers.Qwen3ForCausalLM(config))


HEAD, HEADS, EXPERTS_OF_TOKEN = 64, 4, 2
"""Size of a head, query heads that share one of keys, and experts that a token uses."""


def make_large(
    vocabulary: int,
    hidden: int = 1024,
    layers: int = 4,
    dense_layers: int = 2,
    experts: int = 8,
) -> torch.nn.Module:
    """A Qwen3 mixture of experts whose prompts take time on a CPU core.

    Args:
        vocabulary: how many tokens it knows.
        hidden: size of a hidden state.
        layers: all of them.
        dense_layers: those without experts, spread evenly. A rank computes them for its
            own prompts, and all ranks share the others' experts: a token costs them
            half of what it costs a dense layer.
        experts: of each other layer.
    """
    unit = HEADS * HEAD
    if hidden < unit or hidden % unit:
        raise ValueError(f"--hidden {hidden}: give a multiple of {unit}")
    if not 0 <= dense_layers < layers:
        raise ValueError(
            f"--dense-layers {dense_layers}: expected 0 or more, and fewer than the "
            f"{layers} of --layers: one has experts"
        )
    if experts < EXPERTS_OF_TOKEN:
        raise ValueError(
            f"--experts {experts}: give {EXPERTS_OF_TOKEN} or more, as a token uses"
        )
    shape = SHAPE | {
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": layers,
        "num_attention_heads": hidden // HEAD,
        "num_key_value_heads": hidden // unit,
        "head_dim": HEAD,
        "max_position_embeddings": 8192,
    }
    config = transformers.Qwen3MoeConfig(
        vocab_size=vocabulary,
        moe_intermediate_size=hidden,
        num_experts=experts,
        num_experts_per_tok=EXPERTS_OF_TOKEN,
        decoder_sparse_step=1,
        mlp_only_layers=[n * layers // dense_layers for n in range(dense_layers)],
        norm_topk_prob=True,
        **shape,
    )
    return randomised(transformers.Qwen3MoeForCausalLM(config))


MODELS: dict[str, Callable[..., torch.nn.Module]] = {
    "moe": make_moe,
    "dense": make_dense,
    "large": make_large,
}
TINY = [name for name in MODELS if name != "large"]


def randomised(model: torch.nn.Module) -> torch.nn.Module:
    """The model with every weight matrix drawn anew, in float32; norms keep their ones.

    Embeddings are N(0, 1), other matrices N(0, (GAIN / √inputs)²): each layer's output
    then weighs as much as its input, so that the next token depends on the whole
    context and not on the last token alone.
    """
    generator = torch.Generator().manual_seed(SEED)
    for name, weight in sorted(model.named_parameters()):
        if weight.dim() < 2:
            continue
        scale = 1.0 if "embed" in name else GAIN / weight.shape[-1] ** 0.5
        with torch.no_grad():
            weight.copy_(torch.randn(weight.shape, generator=generator) * scale)
    return model.float().eval()


GAIN = 2.0


def make(name: str, out: Path, **sizes: int) -> Path:
    """Make model ``name`` in ``out / name``; ``sizes`` are those of `make_large`.

    Raises:
        FileExistsError: that folder exists.
        ValueError: There is no model of these sizes.
    """
    folder = out / name
    if folder.exists():
        raise FileExistsError(
            f"{folder}: expected no such folder, found one; choose another --out or "
            "remove it"
        )
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out, prefix=f".{name}-") as temporary:
        new = Path(temporary) / name
        tokenizer = make_tokenizer()
        model = MODELS[name](len(tokenizer), **sizes)
        model.save_pretrained(new)
        tokenizer.save_pretrained(new)
        new.rename(folder)
    return folder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="parent folder")
    parser.add_argument("--model", choices=[*MODELS, "all"], default="all")
    of_large = parser.add_argument_group("sizes of large")
    for each in [*inspect.signature(make_large).parameters.values()][1:]:
        option, text = f"--{each.name.replace('_', '-')}", f"default: {each.default}"
        of_large.add_argument(option, type=int, default=argparse.SUPPRESS, help=text)
    arguments = parser.parse_args()
    sizes = {k: n for k, n in vars(arguments).items() if k not in ("out", "model")}
    if sizes and arguments.model != "large":
        parser.error("sizes are of --model large alone")
    names = TINY if arguments.model == "all" else [arguments.model]
    try:
        for name in names:
            print(make(name, arguments.out, **sizes))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
