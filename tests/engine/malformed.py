"""Requests that reach the front-end and no rank, or name a rank that there is not."""

from collections.abc import Iterator
from typing import Any

HUGE = (2**63, 2**64, -(2**63) - 1, 10**30)
"""Integers that JSON can say and the message to a rank cannot."""

INTEGERS = (
    *("top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "n"),
    *("priority", "truncate_prompt_tokens"),
)
GOOD: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 2, "ignore_eos": True}
RANKS = ("-1", "2", "99", str(2**70), "1.5", "one", "", "0x1", "1e0", "1,0", "nan")


def malformed(model: str) -> Iterator[tuple[dict[str, Any], str]]:
    """A body, and the rank that it is pinned to."""
    good = {"model": model} | GOOD
    for value in HUGE:
        for name in INTEGERS:
            yield good | {name: value}, "0"
        for change in (
            {"stop_token_ids": [value]},
            {"vllm_xargs": {"a": value}},
            {"kv_transfer_params": {"a": [value]}},
            {"logit_bias": {"5": value}},
            {"allowed_token_ids": [value]},
            {"prompt": [value]},
        ):
            yield good | change, "0"
    for rank in RANKS:
        yield good, rank
