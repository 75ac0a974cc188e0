"""A rebase that is killed with SIGKILL goes on, or goes back, exactly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from balance_tools.paths import Paths
from balance_tools.rebase.journal import in_progress
from killed import ALL, killer
from rebase_samples import ENGINE, UPSTREAM, make_root, make_sdist, rebase, tracked

NEWER = ENGINE.replace(b"class Engine", b"LIMIT = 8\n\n\nclass Engine")


def run(root: Path, kill_at: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    tools = Path(__file__).resolve().parents[3] / "tools"
    return subprocess.run(
        [
            sys.executable,
            "-c",
            killer(ALL),
            str(kill_at),
            "rebase",
            arguments[0],
            "--root",
            str(root),
            *arguments[1:],
        ],
        env={**os.environ, "PYTHONPATH": str(tools)},
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[int, dict[str, bytes]]:
    """(number of effects, result) of a run that nothing interrupts."""
    folder = tmp_path_factory.mktemp("whole")
    root = make_root(folder)
    done = run(root, 0, "bump", "--sdist", str(newer(folder)))
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1]), tracked(root)


def newer(folder: Path) -> Path:
    return make_sdist(folder, "vllm-2.0", {**UPSTREAM, "vllm/engine.py": NEWER})


# Hundredths of the way; the last hundredths are the replacement of series and lock.
POINTS = (2, 55, 92, 95, 97, 98, 99, 100)


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_it_continues_or_aborts(
    point: int, whole: tuple[int, dict[str, bytes]], tmp_path: Path
) -> None:
    effects, wanted = whole
    root = make_root(tmp_path)
    before = tracked(root)
    archive = str(newer(tmp_path))
    kill_at = max(1, effects * point // 100)
    killed = run(root, kill_at, "bump", "--sdist", archive)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if in_progress(Paths(root)) is None:
        assert tracked(root) in (before, wanted)
        assert rebase(root, "--sdist", archive) == 0
        assert tracked(root) == wanted
        return
    (other := tmp_path / "other").mkdir()
    subprocess.run(["cp", "-a", str(root), str(other)], check=True)
    assert rebase(other / "root", "abort") == 0
    assert tracked(other / "root") == before
    assert rebase(root, "continue") == 0
    assert tracked(root) == wanted
    left = [p.name for p in (root / "patches").iterdir()]
    assert sorted(left) == ["vllm", "vllm_ascend"]
