"""What does not fit has a status and an exit code of its own, also in a scan."""

from balance_tools.contract.fit import has_newest, status_of
from balance_tools.contract.typecheck import Finding
from balance_tools.hooks.model import Status
from balance_tools.rebase.scan_rows import (
    ScannedPatch,
    ScannedRelease,
    scan_markdown,
)

SYMBOL = Finding("", 0, "gate.patch: Relies-On vllm.a.B.c is gone")
NAME = Finding("vllm/gate.py", 7, "vllm.a.B.d is gone")
PLACED = ScannedPatch("gate.patch", "context-only", (), {"git": 1, "syntax": 2})
CONFLICT = ScannedPatch("gate.patch", "conflict", ("a.py: no place",), {"nobody": 3})


def test_a_vanished_symbol_is_not_the_same_as_a_misfit() -> None:
    assert status_of(()) is Status.UNTOUCHED
    assert status_of((NAME,)) is Status.MISFIT
    assert status_of((SYMBOL, NAME)) is Status.VANISHED
    codes = {status.exit_code for status in Status if status.needs_human}
    assert {Status.VANISHED.exit_code, Status.MISFIT.exit_code} <= codes
    assert len(codes) == sum(status.needs_human for status in Status)


def test_a_finding_says_where_what_and_what_upstream_did() -> None:
    assert str(NAME) == "vllm/gate.py:7: vllm.a.B.d is gone"


def test_names_of_later_releases_are_asked_for_from_the_newest_line_on() -> None:
    asked = ["0.24.0", "0.33.0", "0.34.0"]
    assert [has_newest(v, "0.23.0", ["0.30", "0.33"]) for v in asked] == [0, 1, 1]
    assert [has_newest(v, "0.23.0", []) for v in asked] == [1, 1, 1]
    assert not has_newest("0.33.1", "0.33.0", ["0.30", "0.33"])
    assert not has_newest("0.23.1", "0.23.0", [])
    assert not has_newest("0.13.0", "0.23.0", [])
    assert not has_newest("my-folder", "0.23.0", [])


def test_placed_and_checked_are_two_numbers() -> None:
    rows = [
        ScannedRelease("0.1", (CONFLICT,), 1.0),
        ScannedRelease("0.2", (PLACED,), 1.0, "does-not-fit", (str(NAME),)),
        ScannedRelease("0.3", (PLACED,), 1.0, "untouched"),
        ScannedRelease("0.4", (PLACED,), 1.0, "untouched"),
    ]
    assert [row.placed for row in rows] == [False, True, True, True]
    assert [row.checked for row in rows] == [False, False, True, True]
    human = [row.status.needs_human for row in rows]
    assert human == [True, True, False, False]
    assert rows[1].status.exit_code == Status.MISFIT.exit_code
    text = scan_markdown(rows, "0.3")
    assert "Placed with no human: 3 of 4." in text
    assert "(our files and hooks fit): 2 of 4." in text
    assert "- 0.2: vllm/gate.py:7: vllm.a.B.d is gone" in text
    assert "| git 1, syntax 2 | yes | 1.0 |" in text
