"""No check of `vllm.fixes` takes more time for each letter of a longer text."""

import json
import time

import pytest
from vllm.fixes import bodies, client_checks, grammars, request_checks

COUNT = 20_000
TEXTS = {
    "letters": lambda count: "a" * count,
    "quotes": lambda count: '""' * count,
    "escaped quotes": lambda count: '"' + '\\"' * count,
    "comments": lambda count: "# a {1} [b]\n" * count,
    "brackets": lambda count: "[]" * count,
    "classes": lambda count: "[ab]{3}" * count,
}
CHECKS = {
    "levels": client_checks._levels,
    "characters": lambda text: grammars._text([text] * 2),
    "repeats": grammars._OFTEN.search,
    "grammars of a body": lambda text: bodies.check_grammars(
        json.dumps({"prompt": text}).encode()
    ),
}
LISTS = {
    "characters": grammars._text,
    "levels": client_checks._levels,
    "prompts": lambda each: request_checks.check_prompts({"prompt": each}),
    "token ids": request_checks.check_token_ids,
}


def seconds(check, value):
    """The least of several: what others do on this machine only adds to it."""
    found = []
    for _ in range(7):
        start = time.thread_time()
        check(value)
        found.append(time.thread_time() - start)
    return min(found)


def assert_linear(check, of):
    """Four times as much may take eight times as long; its square is sixteen."""
    less, more = (seconds(check, of(count)) for count in (COUNT, 4 * COUNT))
    assert more < 8 * less + 0.002, f"{less * 1e3:.2f} ms, then {more * 1e3:.2f} ms"


@pytest.fixture(autouse=True)
def without_limits(monkeypatch):
    monkeypatch.setattr(grammars, "MOST_BYTES", 1_000)
    monkeypatch.setattr(request_checks, "MOST_PROMPTS", 1 << 40)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("text", TEXTS)
def test_a_check_of_a_text_takes_linear_time(check, text):
    assert_linear(CHECKS[check], TEXTS[text])


@pytest.mark.parametrize("check", LISTS)
def test_a_check_of_a_list_takes_linear_time(check):
    assert_linear(LISTS[check], lambda count: list(range(count)))
