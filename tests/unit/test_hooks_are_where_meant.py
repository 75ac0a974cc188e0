"""The hooks stand where a person says they must, on the pin and wherever scanned."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from balance_tools.lock import load_lock
from balance_tools.paths import Paths
from balance_tools.pristine import ensure_pristine
from balance_tools.series import load_series, patched_files
from hooks_oracle import CHECKS, misplaced

PATHS = Paths.find()
SERIES = load_series(PATHS.patches("vllm"))
# Results of this series; a scan of an earlier one may lie there, too.
SCANNED = [
    path
    for path in sorted(PATHS.build.glob("rebase/scan/*/row.json"))
    if json.loads(path.read_text())["inputs"][0].startswith(SERIES.sha256)
]


@pytest.fixture(scope="module")
def pinned() -> dict[str, bytes]:
    tree = ensure_pristine(load_lock(PATHS.lock).vllm, PATHS)
    files = patched_files(SERIES, tree)
    return {path: content for path, content in files.items() if content is not None}


def test_on_the_pin(pinned: dict[str, bytes]) -> None:
    assert set(CHECKS) <= set(pinned)
    assert misplaced(pinned) == []


@pytest.mark.parametrize(
    ("path", "hook"),
    [
        ("vllm/v1/engine/core.py", b"gate.exchange("),
        ("vllm/v1/core/sched/scheduler.py", b"balance_gate.holds("),
        ("vllm/v1/core/sched/scheduler.py", b"self.balance_gate = "),
        ("vllm/config/parallel.py", b"check_balance_config("),
        ("vllm/engine/arg_utils.py", b"data_parallel_balance=self."),
    ],
)
def test_the_oracle_sees_a_hook_that_is_gone(
    pinned: dict[str, bytes], path: str, hook: bytes
) -> None:
    assert pinned[path].count(hook) == 1
    gone = (
        b"other = "
        if hook.endswith(b"= ")
        else b"other=self."
        if b"=" in hook
        else b"other("
    )
    assert len(misplaced({path: pinned[path].replace(hook, gone)})) == 1


@pytest.mark.skipif(
    not SCANNED, reason="no scan: run tools/rebase.sh --scan 0.13.0..0.33.0"
)
@pytest.mark.parametrize("row", SCANNED, ids=lambda path: path.parent.name)
def test_on_every_scanned_release(row: Path) -> None:
    """Where the scan asks for no human, every hook is where it must be."""
    cells = json.loads(row.read_text())["cells"]
    undecided = {why.split(":")[0] for cell in cells for why in cell["reasons"]}
    paths = set(CHECKS) - undecided
    assert "vllm/v1/engine/core.py" in paths
    patched = row.parent / "patched"
    assert misplaced({path: (patched / path).read_bytes() for path in paths}) == []
