"""The hooks stand where a person says they must, on the pin and wherever scanned."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from packaging.version import Version

from balance_tools.files import exclusive
from balance_tools.paths import Paths
from balance_tools.rebase.scan import releases, scan
from balance_tools.rebase.scan_rows import ScannedRelease
from balance_tools.rebase.session import work_root
from balance_tools.rebase.supported_release import SupportedRelease
from balance_tools.series.apply import load_series, patched_files
from balance_tools.series.patchfile import ADDED
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine
from hooks_oracle import CHECKS, misplaced
from vllm_balance.fingerprint import series_sha256

PATHS = Paths.find()
SERIES = {name: load_series(PATHS.patches(name)) for name in ("vllm", "vllm_ascend")}
# The import list that the option patch adds to does not exist there, nor a block of the
# waiting loop in which the gate asks.
CONFLICTING = "0.16.0"
SUPPORTED = [
    SupportedRelease(path.name, path).lock().vllm
    for path in sorted((PATHS.root / "lines").iterdir())
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
        b"gate.exchange_for(self)",
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


@pytest.fixture(scope="module")
def scanned() -> dict[str, ScannedRelease]:
    """What a scan finds on the supported releases and on one that conflicts."""
    version = Version(CONFLICTING)
    artifacts = [*releases(PATHS, version, version), *SUPPORTED]
    with exclusive(work_root(PATHS) / ".lock"):
        rows = scan(PATHS, load_lock(PATHS.lock), artifacts)
    return {row.version: row for row in rows}


@pytest.mark.timeout(1200)  # the first one scans: a minute on two quiet cores
def test_supported_releases_are_placed_and_fit(
    scanned: dict[str, ScannedRelease],
) -> None:
    assert SUPPORTED
    for artifact in SUPPORTED:
        row = scanned[artifact.version]
        assert (row.placed, row.checked, row.findings) == (True, True, ())


def test_a_conflict_is_found(scanned: dict[str, ScannedRelease]) -> None:
    bad = [cell.patch for cell in scanned[CONFLICTING].cells if cell.reasons]
    assert bad == [f"data-parallel-balance-{name}.patch" for name in ("option", "gate")]
    assert (scanned[CONFLICTING].placed, scanned[CONFLICTING].checked) == (False, False)


def test_on_every_scanned_release(scanned: dict[str, ScannedRelease]) -> None:
    """Where the scan asks for no human, every hook is where it must be."""
    looked_at = []
    for file in sorted(PATHS.build.glob("rebase/scan/*/row.json")):
        row = json.loads(file.read_text())
        if not row["inputs"][0].startswith(series_sha256(PATHS.root, "vllm")):
            continue  # of an earlier series
        undecided = {why.split(":")[0] for c in row["cells"] for why in c["reasons"]}
        paths = set(CHECKS) & set(SERIES["vllm"].paths) - undecided
        assert "vllm/v1/engine/core.py" in paths
        patched = file.parent / "patched"
        found = misplaced({path: (patched / path).read_bytes() for path in paths})
        assert (file.parent.name, found) == (file.parent.name, [])
        looked_at.append(file.parent.name)
    assert set(scanned) <= set(looked_at)
