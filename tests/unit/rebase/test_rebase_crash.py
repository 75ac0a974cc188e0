"""A rebase that is killed with SIGKILL goes on, or goes back, exactly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from balance_tools.paths import Paths
from balance_tools.rebase.session import in_progress
from rebase_samples import ENGINE, UPSTREAM, make_root, make_sdist, rebase, tracked

# Kills its own process at the n-th effect: a rename, removal, new folder or program.
KILLER = """
import os, signal, sys
from balance_tools.__main__ import main
EFFECTS = {"os.rename", "os.remove", "os.rmdir", "os.mkdir", "subprocess.Popen"}
last, seen = int(sys.argv[1]), 0
def hook(event, arguments):
    global seen
    if event in EFFECTS:
        seen += 1
        if seen == last:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
code = main(sys.argv[2:])
print(seen)
sys.exit(code)
"""
NEWER = ENGINE.replace(b"class Engine", b"LIMIT = 8\n\n\nclass Engine")


def run(root: Path, kill_at: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    tools = Path(__file__).resolve().parents[3] / "tools"
    return subprocess.run(
        [
            sys.executable,
            "-c",
            KILLER,
            str(kill_at),
            "rebase",
            "--root",
            str(root),
            *list(arguments),
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
    done = run(root, 0, "--sdist", str(newer(folder)))
    assert done.returncode == 0, done.stderr
    return int(done.stdout.split()[-1]), tracked(root)


def newer(folder: Path) -> Path:
    return make_sdist(folder, "vllm-2.0", {**UPSTREAM, "vllm/engine.py": NEWER})


# Hundredths of the way; the last hundredths are the replacement of series and lock.
POINTS = (2, 10, 25, 40, 55, 70, 80, 88, *range(90, 101))


@pytest.mark.parametrize("point", POINTS)
def test_killed_at_any_point_it_continues_or_aborts(
    point: int, whole: tuple[int, dict[str, bytes]], tmp_path: Path
) -> None:
    effects, wanted = whole
    root = make_root(tmp_path)
    before = tracked(root)
    archive = str(newer(tmp_path))
    kill_at = max(1, effects * point // 100)
    killed = run(root, kill_at, "--sdist", archive)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    if in_progress(Paths(root)) is None:
        assert tracked(root) in (before, wanted)
        assert rebase(root, "--sdist", archive) == 0
        assert tracked(root) == wanted
        return
    (other := tmp_path / "other").mkdir()
    subprocess.run(["cp", "-a", str(root), str(other)], check=True)
    assert rebase(other / "root", "--abort") == 0
    assert tracked(other / "root") == before
    assert rebase(root, "--continue") == 0
    assert tracked(root) == wanted
    left = [p.name for p in (root / "patches").iterdir()]
    assert sorted(left) == ["vllm", "vllm_ascend"]


def test_killed_again_and_again_it_still_arrives(
    whole: tuple[int, dict[str, bytes]], tmp_path: Path
) -> None:
    effects, wanted = whole
    root = make_root(tmp_path)
    step = effects // 3
    result = run(root, step, "--sdist", str(newer(tmp_path)))
    for _ in range(30):
        if result.returncode == 0:
            break
        started = in_progress(Paths(root)) is not None
        again = ["--continue"] if started else ["--sdist", str(newer(tmp_path))]
        result = run(root, step, *again)
    assert result.returncode == 0
    assert tracked(root) == wanted
