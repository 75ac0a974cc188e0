"""The hooks stand where a person says they must, on the pin and wherever scanned."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from balance_tools.paths import Paths
from balance_tools.series.apply import load_series, patched_files
from balance_tools.series.patchfile import ADDED
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine
from hooks_oracle import CHECKS, misplaced

PATHS = Paths.find()
SERIES = {name: load_series(PATHS.patches(name)) for name in ("vllm", "vllm_ascend")}
# Results of this series; a scan of an earlier one may lie there, too.
SCANNED = [
    path
    for path in sorted(PATHS.build.glob("rebase/scan/*/row.json"))
    if json.loads(path.read_text())["inputs"][0].startswith(SERIES["vllm"].sha256)
]


def hooks() -> Iterator[tuple[str, str, bytes]]:
    """Yield every run of added lines: the patch, the file, and the lines."""
    for series in SERIES.values():
        for patch in series.patches:
            for file in patch.files:
                for hunk in file.hunks:
                    run = b""
                    for tag, line in (*hunk.lines, ("", b"")):
                        if tag == ADDED:
                            run += line
                        elif run:
                            yield patch.name, file.path, run
                            run = b""


HOOKS = list(hooks())


@pytest.fixture(scope="module")
def pinned() -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    for name, artifact in load_lock(PATHS.lock).packages.items():
        files = patched_files(SERIES[name], ensure_pristine(artifact, PATHS))
        found |= {path: content for path, content in files.items() if content}
    return found


def test_on_the_pin(pinned: dict[str, bytes]) -> None:
    assert set(CHECKS) == set(pinned)
    assert misplaced(pinned) == []


@pytest.mark.parametrize("copies", [0, 2])
@pytest.mark.parametrize("number", range(len(HOOKS)))
def test_the_oracle_sees_every_hook_that_is_gone_or_doubled(
    pinned: dict[str, bytes], number: int, copies: int
) -> None:
    _, path, hook = HOOKS[number]
    assert pinned[path].count(hook) == 1
    assert misplaced({path: pinned[path].replace(hook, hook * copies)})


# A hook, and a line of upstream's above which it would do harm.
MOVES = {
    "exchange before the finish-sync": (
        "vllm/v1/engine/core.py",
        b"gate.exchange(",
        b"            # 3) All-reduce operation to determine global unfinished reqs.\n",
    ),
    "hold before the request is looked at": (
        "vllm/v1/core/sched/scheduler.py",
        b"balance_gate.holds(",
        b"                request = request_queue.peek_request()\n",
    ),
    "gate before the limit": (
        "vllm/v1/core/sched/scheduler.py",
        b"create_balance_gate(self",
        b"        self.max_num_running_reqs = self.scheduler_config.max_num_seqs\n",
    ),
    "metrics before the labels": (
        "vllm/v1/metrics/loggers.py",
        b"self.dp_balance_prom = ",
        b"        per_engine_labelvalues = self.per_engine_labelvalues\n",
    ),
    "ranks compared after the hash": (
        "vllm/v1/engine/utils.py",
        b"check_same_identity(eng_index",
        b"                if worker_config_hash != expected_hash:\n",
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_the_oracle_sees_a_hook_at_another_place(
    pinned: dict[str, bytes], name: str
) -> None:
    path, part, above = MOVES[name]
    (hook,) = [lines for _, where, lines in HOOKS if where == path and part in lines]
    without = pinned[path].replace(hook, b"")
    assert without.count(above) == 1
    assert misplaced({path: without.replace(above, hook + above)})


@pytest.mark.skipif(
    not SCANNED, reason="no scan: run tools/rebase.sh --scan 0.13.0..0.33.0"
)
@pytest.mark.parametrize("row", SCANNED, ids=lambda path: path.parent.name)
def test_on_every_scanned_release(row: Path) -> None:
    """Where the scan asks for no human, every hook is where it must be."""
    cells = json.loads(row.read_text())["cells"]
    undecided = {why.split(":")[0] for cell in cells for why in cell["reasons"]}
    paths = set(CHECKS) & set(SERIES["vllm"].paths) - undecided
    assert "vllm/v1/engine/core.py" in paths
    patched = row.parent / "patched"
    assert misplaced({path: (patched / path).read_bytes() for path in paths}) == []
