"""Greedy output of Hugging Face transformers, to compare the engine with."""

import random
from dataclasses import dataclass

import torch
import transformers

MARGIN = 5e-4
"""Least lead of the best token, in standard deviations of the logits.

Two float32 implementations differ by less than 1e-5 of these: with the margin, another
token is a bug and not noise.
"""

PROMPT_LENGTHS = (1, 2, 3, 7, 15, 16, 17, 31, 50, 64, 90, 127, 128, 129)
SHARED_LENGTHS = (130, 150, 200, 255, 256, 257, 270, 300)
"""Prompts of these lengths start alike, over at least one block of 128 tokens."""

NEW_TOKENS = 16
FIRST_TEXT_TOKEN = 3  # below: the special tokens of the tiny models


@dataclass(frozen=True)
class Sample:
    """One prompt and what follows it, both as token ids."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]


def samples(
    folder, attention=None, margin=MARGIN, change=lambda model: None, longer=()
):
    """22 random prompts and their greedy tokens; what comes near a tie is replaced.

    `attention` is another implementation of it than Hugging Face's own choice, and
    `change` makes the model another before it writes. `longer` are lengths of more.
    """
    model = _load(folder, attention)
    change(model)
    draw = random.Random(7)
    vocabulary = range(FIRST_TEXT_TOKEN, model.config.get_text_config().vocab_size)

    def sample(start, length):
        tokens = None
        while tokens is None:
            prompt = start + tuple(draw.choices(vocabulary, k=length - len(start)))
            tokens = _continuation(model, prompt, margin)
        return Sample(prompt, tokens)

    shared = tuple(draw.choices(vocabulary, k=129))
    found = [sample((), length) for length in PROMPT_LENGTHS + longer]
    return found + [sample(shared, length) for length in SHARED_LENGTHS]


def continuations(folder, prompts):
    """Continue each prompt by ``NEW_TOKENS`` greedy tokens; None if near a tie."""
    model = _load(folder)
    return [_continuation(model, prompt) for prompt in prompts]


def _load(folder, attention=None):
    torch.set_num_threads(1)
    (name,) = transformers.AutoConfig.from_pretrained(folder).architectures
    model = getattr(transformers, name).from_pretrained(
        folder, dtype=torch.float32, attn_implementation=attention
    )
    model.eval()
    model.generation_config.eos_token_id = None  # full length
    return model


def _continuation(model, prompt, margin=MARGIN):
    output = model.generate(
        torch.tensor([prompt]),
        max_new_tokens=NEW_TOKENS,
        do_sample=False,
        output_scores=True,
        return_dict_in_generate=True,
    )
    if _margin(output.scores) < margin:
        return None
    return tuple(output.sequences[0, len(prompt) :].tolist())


def _margin(scores):
    """The least lead of the best token over the steps, in standard deviations."""
    logits = torch.stack(list(scores))[:, 0]
    best = logits.topk(2, dim=-1).values
    return float(((best[:, 0] - best[:, 1]) / logits.std(dim=-1)).min())
