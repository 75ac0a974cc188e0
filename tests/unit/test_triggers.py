"""Nothing here is a request that stops or slows software which has not our patches.

Only what stands in a text is found: a page says in words what is stopped, and for how
long; a test lowers a limit and sends something small above it.
"""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("*.md", "*.toml", ".github", "docs", "lines", "patches", "tests")
OURS = (":!tests/unit/simulator", ":!tests/unit/test_triggers.py")
"""Files that only our own readers get, and this one."""
TRIGGERS = {
    "many levels": r"""(["'])(?:(?!\1).)*[][(){}](?:(?!\1).)*\1 ?\* ?\d[\d_]{2}""",
    "brackets": r"[][{}(]{40}",
    "a long text": r"""(["'])(?:(?!\1).)*\1\]? ?\* ?\d[\d_]{6}""",
    "a repetition": r"\{\d*,?\d{4,}\}",
    "a size": r"(?:max|min)(?:Length|Items|Properties)\W{1,4}(?:\d[\d_]{6}|\d+ ?\*\*)",
    "a resize": r"new_data_parallel_size\W{1,4}\d",
    "no token": r"(?:prompt|input|_ids)[\"']\W{2,6}(?:\d+, )*(?:-\d|\d{6}|\d+ ?\*\*)",
    "an automaton": r"\([^()|\n]*\|[^()\n]*\)[*+][^\n]{0,20}\)\{\d",
}
"""By what it is: how it looks beside a request."""
EXAMPLES = {
    "many levels": ("'{:' * 900", "'[' * 9"),
    "brackets": ("" + "[" * 45, "[[[["),
    "a long text": ('"x" * 100_000', '"x" * 1024'),
    "a repetition": ("a{1,3" + "0000}", "a{1,41}"),
    "a size": ('"maxLength": 10**9', '"maxLength": 41'),
    "a resize": ('"new_data_parallel_size": 4000', '"data_parallel_size": 4'),
    "no token": ('"stop_token_ids": [5, -7]', '"stop_token_ids": [5, 7]'),
    "an automaton": ("(a|b)*a(a|b){2", "(a|b){2"),
}
"""Of each what is found, and what is not."""


def found_in(text: str) -> list[str]:
    return [
        f"{what}: {found[0][:60]}"
        for what, pattern in TRIGGERS.items()
        for found in re.finditer(pattern, text)
    ]


def test_what_would_harm_is_found_and_what_would_not_is_not():
    assert EXAMPLES.keys() == TRIGGERS.keys()
    for what, (trigger, harmless) in EXAMPLES.items():
        assert re.search(TRIGGERS[what], trigger), what
        assert not re.search(TRIGGERS[what], harmless), what


def test_no_page_and_no_test_has_a_request_that_harms():
    listed = subprocess.check_output(
        ["git", "ls-files", "-z", "--", *FOLDERS, *OURS], cwd=ROOT, text=True
    )
    files = [ROOT / name for name in listed.split("\0") if name]
    texts = [path for path in files if path.suffix in (".md", ".py", ".patch", ".toml")]
    assert len(texts) > 200
    wrong = {
        str(path.relative_to(ROOT)): found
        for path in texts
        if path.exists() and (found := found_in(path.read_text(encoding="utf-8")))
    }
    assert wrong == {}
