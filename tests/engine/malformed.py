"""Requests that no well-behaved client sends, of every kind that reaches the API."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

HUGE = (2**63, 2**64, -(2**63) - 1, 10**30)
"""Integers that JSON can say and the message to a rank cannot."""

INTEGERS = (
    *("top_k", "seed", "max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "n"),
    *("priority", "truncate_prompt_tokens"),
)
NUMBERS = (
    *("temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty"),
    "repetition_penalty",
)
WRONG = ("seven", [1], {"a": 1}, -1e9)
GOOD: dict[str, Any] = {"prompt": [5, 6, 7], "max_tokens": 2, "ignore_eos": True}

_ODD: tuple[dict[str, Any], ...] = (
    *(
        {"prompt": each}
        for each in ("", [], [[]], None, {}, 7, [5] * 5000, "a " * 9000)
    ),
    *({"prompt": each} for each in ([-1], [10**9], [2**70], ["a", 5], [[5], "a"])),
    *({"prompt": each} for each in ("\u0000", "\U0001f600" * 50, "\ufffe", "a\u202eb")),
    *({"stop": each} for each in ("", [""], ["a"] * 500, "\u0000", [5], "\U0001f600")),
    *({"model": each} for each in ("nobody/has-it", "", 5, None, "../../etc/passwd")),
    *(
        {"logit_bias": each}
        for each in ({"a": 1}, {"-5": 1}, {"9" * 30: 1}, {"5": "x"})
    ),
    *({"bad_words": each} for each in ([""], "a", [5], ["\U0001f600"])),
    *({"allowed_token_ids": each} for each in ([], [-1], [10**9], "a")),
    *({"structured_outputs": {"regex": each}} for each in ("(", "[", "(?P<a", 5)),
    {"structured_outputs": {"grammar": "root ::= "}},
    {"structured_outputs": {"json": {"type": "nothing"}}},
    {"structured_outputs": {"json": "{", "regex": "a"}},
    {"structured_outputs": {"choice": []}},
    {"response_format": {"type": "json_schema"}},
    {"response_format": {"type": "nothing"}},
    {"stream_options": {"include_usage": "x"}},
    {"n": 2, "use_beam_search": True, "temperature": 0},
    {"prompt_embeds": "not base64!"},
    {"lora": "unknown"},
    {"suffix": "x", "echo": True, "logprobs": 2000},
    {"cache_salt": ""},
    {"request_id": "\n\r\0"},
    {"request_id": "a" * 100_000},
)
_RANKS = ("-1", "2", "99", str(2**70), "1.5", "one", "", "0x1", "1e0", "1,0", "nan")
_HEADERS: tuple[dict[str, str], ...] = (
    *({"X-data-parallel-rank": rank} for rank in _RANKS),
    *({"X-Request-Id": "same"}, {"X-Request-Id": "same"}, {"Content-Type": "text/x"}),
)
_BODIES = (
    *(b"", b"{", b"null", b"[]", b'"a"', b"\xff\xfe", b'{"prompt": NaN}', b"[" * 2000),
    *(b'{"prompt": "\\ud800", "max_tokens": 2}', b'{"prompt": [1e999]}'),
)


def malformed(model: str) -> Iterator[tuple[str, bytes, dict[str, str]]]:
    """A name, a body and headers for each; all are pinned to rank 0 if they may be."""
    changes: list[dict[str, Any]] = [
        *({name: value} for name in INTEGERS for value in (*HUGE, *WRONG)),
        *(
            {name: value}
            for name in NUMBERS
            for value in (float("nan"), float("inf"), -float("inf"), *HUGE[1:3], *WRONG)
        ),
        *(
            change
            for value in HUGE
            for change in (
                {"stop_token_ids": [value]},
                {"vllm_xargs": {"a": value}},
                {"kv_transfer_params": {"a": [value]}},
                {"logit_bias": {"5": value}},
                {"allowed_token_ids": [value]},
                {"prompt": [value]},
            )
        ),
        *_ODD,
    ]
    for change in changes:
        body = json.dumps({"model": model} | GOOD | change).encode()
        yield f"{change!r:.60}", body, {"X-data-parallel-rank": "0"}
    good = json.dumps({"model": model} | GOOD).encode()
    for headers in _HEADERS:
        yield f"{headers!r:.60}", good, headers
    for body in itertools.chain(_BODIES):
        yield f"{body!r:.60}", body, {"X-data-parallel-rank": "0"}
