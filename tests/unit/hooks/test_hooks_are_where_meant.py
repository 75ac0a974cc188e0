"""Gate and exchange stand where a person says they must, on the pin and elsewhere."""

import pytest

from balance_tools.files import exclusive
from balance_tools.paths import Paths
from balance_tools.rebase.line import all_lines, derive
from balance_tools.rebase.scan import releases, scan
from balance_tools.series.apply import load_series, patched_files
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine
from hooks_oracle import CORE, SCHEDULER, SENTINEL, misplaced

PATHS = Paths.find()
LINES = all_lines(PATHS)
# There is no import list as the option patch adds to, no block of the waiting loop in
# which the gate asks, and none of two functions that the survival patch touches.
CONFLICTING = "0.16.0"


@pytest.fixture(scope="module")
def pinned():
    tree = ensure_pristine(load_lock(PATHS.lock).vllm, PATHS)
    files = patched_files(load_series(PATHS.patches("vllm")), tree)
    return {path: files[path] or b"" for path in (CORE, SCHEDULER)}


def test_on_the_pin(pinned):
    for path, content in pinned.items():
        assert misplaced(path, content) == ""


# A hook, how many lines it has, and a line of upstream's above which it does harm.
MOVES = [
    (
        *(CORE, b"if (gate := getattr(self.scheduler", 2),
        b"            # 3) All-reduce operation to determine global unfinished reqs.\n",
    ),
    (
        *(SCHEDULER, b"self.balance_gate.holds(", 4),
        b"                request = request_queue.peek_request()\n",
    ),
]


@pytest.mark.parametrize(("path", "part", "length", "above"), MOVES)
def test_the_oracle_sees_a_hook_that_is_gone_or_elsewhere(
    pinned, path, part, length, above
):
    lines = pinned[path].splitlines(keepends=True)
    start = max(i for i, line in enumerate(lines) if part in line)
    hook = b"".join(lines[start : start + length])
    without = pinned[path].replace(hook, b"", 1)
    assert without != pinned[path]
    assert misplaced(path, without)
    assert without.count(above) == 1
    assert misplaced(path, without.replace(above, hook + above))


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES, ids=lambda line: line.name)
def test_every_line_follows_from_the_pin(line):
    with exclusive(PATHS.build / "rebase" / ".lock"):
        series = load_series(derive(PATHS, line) / "vllm")
        files = patched_files(series, PATHS.unpacked("vllm", line.lock.vllm.version))
    for path in (CORE, SCHEDULER, SENTINEL):
        assert misplaced(path, files[path] or b"") == ""


@pytest.mark.slow
@pytest.mark.timeout(1200)  # scans: a minute on two quiet cores
def test_a_scan_places_the_lines_and_finds_a_conflict():
    artifacts = releases(f"{CONFLICTING}..{CONFLICTING}")
    artifacts += [line.lock.vllm for line in LINES]
    with exclusive(PATHS.build / "rebase" / ".lock"):
        conflict, *rows = scan(PATHS, artifacts)
    assert len(rows) > 1
    for row in rows:
        assert (row.placed, row.checked, row.findings) == (True, True, ())
        moved = PATHS.build / "rebase" / "scan" / row.version
        tree = PATHS.unpacked("vllm", row.version)
        patched = patched_files(load_series(moved), tree)
        for path in (CORE, SCHEDULER):
            assert misplaced(path, patched[path]) == ""
    bad = [patch.name for patch in conflict.patches if patch.reasons]
    assert [name.split("-")[-1] for name in bad] == [
        *("option.patch", "gate.patch", "survival.patch")
    ]
    assert (conflict.placed, conflict.checked) == (False, False)
