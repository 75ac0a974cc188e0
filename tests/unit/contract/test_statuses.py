"""What does not fit has a status and an exit code of its own, also in a scan."""

from balance_tools.contract.check import Finding
from balance_tools.contract.fit import status_of
from balance_tools.hooks.model import PatchResult, Status
from balance_tools.rebase.scan import ScannedRelease, scan_markdown

SYMBOL = Finding("", 0, "gate.patch: Relies-On vllm.a.B.c is gone")
NAME = Finding("vllm/gate.py", 7, "vllm.a.B.d is gone")
PLACED = PatchResult("vllm", "gate.patch", Status.CONTEXT_ONLY)
CONFLICT = PatchResult("vllm", "gate.patch", Status.CONFLICT, (), ("no place",))


def test_a_vanished_symbol_is_not_the_same_as_a_misfit():
    assert status_of(()) is Status.UNTOUCHED
    assert status_of((NAME,)) is Status.MISFIT
    assert status_of((SYMBOL, NAME)) is Status.VANISHED
    codes = {status.exit_code for status in Status if status.needs_human}
    assert {Status.VANISHED.exit_code, Status.MISFIT.exit_code} <= codes
    assert len(codes) == sum(status.needs_human for status in Status)


def test_placed_and_checked_are_two_numbers():
    rows = [
        ScannedRelease("0.1", (CONFLICT,)),
        ScannedRelease("0.2", (PLACED,), (NAME,)),
        ScannedRelease("0.3", (PLACED,), ()),
        ScannedRelease("0.4", (PLACED,), ()),
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
    assert "| context-only | yes |" in text
