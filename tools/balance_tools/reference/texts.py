"""What the reference says where the sources have names alone."""

from __future__ import annotations

PAGE = """\
# Reference

Options, metrics, reasons and variables. `make reference` writes this page from the
parsers and the sources.

## `vllm serve`

{serve}
{commands}
## Metrics

Labelled by `engine`, the rank. They exist only in a group that was started with balance
on, and without `--disable-log-stats`.

{metrics}

## Reasons

{reasons}

## Limits

A request that passes one gets status 400, whose text names it. 0 means no limit. These
are variables of a server's environment.

{limits}

## Other variables

{variables}
"""

REASONS = {
    "open": (
        "all",
        "nothing to decide: the first step of a wave, nothing runs, or it was "
        "switched `off`",
    ),
    "rank_full": ("cap", "some rank runs as many requests as it can"),
    "wait_for_ranks": ("align", "not all ranks have a prefill"),
    "wait_for_batch": ("align", "all ranks have one; a few steps more fill the batch"),
    "aligned": ("align", "all ranks prefill together"),
    "timeout": ("align, cap", "some rank had no prefill, or was full, for too long"),
    "idle": (
        "align, adaptive",
        "a rank (align) or no rank (adaptive) decodes: waiting would only delay",
    ),
    "learn": ("adaptive", "the cost of a step is not known yet"),
    "waiting_cost": (
        "adaptive",
        "waiting costs less than unequal prefills would",
    ),
    "gain": ("adaptive", "releasing gains more than it costs"),
    "decodes_first": ("adaptive", "decoding meanwhile ends more requests than wait"),
    "hold_bound": (
        "adaptive",
        "a request was held up to the bound: as if balance were off until its turn has "
        "come",
    ),
    "losing": (
        "adaptive",
        "holds have cost more than releases have saved: for a while as if balance "
        "were off",
    ),
}
"""By the reason of a decision: the policies that give it, and what it means."""

LIMITS = {
    "VLLM_MAX_GRAMMAR_BYTES": "characters of `json`, `regex`, `choice`, `grammar` or "
    "`structural_tag`",
    "VLLM_MAX_GRAMMAR_STATES": "what repetitions in them unroll to (`maxLength`, "
    "`maxItems`, `{m,n}`), and characters of one literal",
    "VLLM_REGEX_COMPILATION_TIMEOUT_S": "seconds in which `regex` must be compiled; "
    "else status 500",
    "VLLM_GRAMMAR_COMPILATION_TIMEOUT_S": "seconds in which any other of these must be "
    "compiled; else status 500",
    "VLLM_MAX_COMPLETION_PROMPTS": "prompts of a request; eight times as many to score",
    "VLLM_MAX_CACHE_SALT_LENGTH": "characters of `cache_salt`",
    "VLLM_TRUST_REQUEST_MM_KWARGS": "1: take `mm_processor_kwargs` and "
    "`media_io_kwargs` from requests",
    "VLLM_MAX_IMAGE_PIXELS": "pixels of an image",
    "VLLM_MAX_MEDIA_DOWNLOAD_SIZE_MB": "MiB of what an address in a request sends",
    "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": "MiB of audio as it comes, also in a chat",
    "VLLM_MAX_AUDIO_DECODE_DURATION_S": "seconds of decoded audio, but of speech",
    "VLLM_MAX_AUDIO_DECODE_BYTES": "bytes of decoded audio; four times that of speech",
}
"""By the variable of a limit in vllm/fixes: what it limits."""

VARIABLES = {
    "`BALANCE_OPERATOR_KEY`": "of a server, and of who switches it: the key with which "
    "its policy is told and changed while it serves; without it there is no such route",
    "`VLLM_BALANCE_HEALTH`": "of an image: the address that its health check asks, "
    "instead of `http://127.0.0.1:8000/health`",
}
"""By variables that are no limits: who reads them, and what they mean."""
