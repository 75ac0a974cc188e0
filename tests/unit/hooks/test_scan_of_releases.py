"""Real releases: lines follow from the pin, and a scan finds an old one's conflicts.

That the hooks of a line stand where they must is what its engine tests say.
"""

import pytest

from balance_tools.files import exclusive
from balance_tools.paths import Paths
from balance_tools.rebase.line import all_lines, derive
from balance_tools.rebase.scan import releases, scan

PATHS = Paths.find()
LINES = all_lines(PATHS)
# There is no import list as the option patch adds to, no block of the waiting loop in
# which the gate asks, and none of two functions that the survival patch touches.
CONFLICTING = "0.16.0"


@pytest.mark.slow
@pytest.mark.ci
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_every_line_follows_from_the_pin(line):
    with exclusive(PATHS.build / "rebase" / ".lock"):
        series = derive(PATHS, line) / "vllm" / "series"
    assert series.read_text().split()


@pytest.mark.slow
@pytest.mark.timeout(1200)  # a minute on two quiet cores
def test_a_scan_places_all_but_what_a_person_decided_and_finds_a_conflict():
    artifacts = releases(f"{CONFLICTING}..{CONFLICTING}")
    artifacts += [line.lock.vllm for line in LINES]
    with exclusive(PATHS.build / "rebase" / ".lock"):
        conflict, *rows = scan(PATHS, artifacts).values()
    for line, row in zip(LINES, rows, strict=True):
        decided = {name for _, name in line.own}
        assert {patch.name for patch in row.results if patch.reasons} <= decided
        assert row.misfits == ()
    bad = {patch.name for patch in conflict.results if patch.reasons}
    names = ("option", "gate", "survival")
    assert bad >= {f"data-parallel-balance-{name}.patch" for name in names}
    assert not conflict.placed
