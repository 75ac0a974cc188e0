"""Whatever stops a run, the tree is the old or the new one; the next run works."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.vendoring import swap
from balance_tools.vendoring.vendor import Effects
from index_samples import Fault
from repo_samples import OURS, ROOT, TOOLS, SampleRepo
from vendor_child import cannot_exchange

HELPERS = Path(__file__).parents[1] / "helpers"
MINE = "vllm/mine.py"
BEFORE_SWAP = ("extract", "stage", "patch", "check", "copy ours", "swap")
STEPS = [
    *((name, "exchange") for name in (*BEFORE_SWAP, "swapped")),
    *((name, "rename") for name in (*BEFORE_SWAP, "ready", "moved away", "swapped")),
]
NEXT = {
    "vllm/__init__.py": "",
    "vllm/version.py": "one = 1\ntwo = 2\nthree = 3\n",
    "vllm/added.py": "added\n",
}


@pytest.fixture
def upgrade(repo: SampleRepo) -> SampleRepo:
    """A repository whose tree is of one release and whose lock names the next."""
    repo.vendor()
    repo.write(MINE, "mine\n")
    repo.upgrade(NEXT)
    return repo


def is_old(repo: SampleRepo) -> bool:
    return "added.py" not in repo.tree() and "v1/core/sched/scheduler.py" in repo.tree()


def check_new(repo: SampleRepo) -> None:
    assert repo.tree() == {
        "__init__.py": "",
        "version.py": "one = 1\ntwo = 2\nthree = 3\nfour = 4\n",
        "added.py": "added\n",
        "mine.py": "mine\n",
        "v1/core/sched/balance/gate.py": "# ours\n",
    }
    assert not repo.paths.staging.exists()
    assert repo.git("status", "--porcelain", OURS) == ""


@pytest.mark.parametrize(("step", "how"), STEPS)
def test_after_kill_9_the_next_run_succeeds(
    step: str, how: str, upgrade: SampleRepo
) -> None:
    upgrade.env["PYTHONPATH"] = os.pathsep.join(map(str, (TOOLS, HELPERS, ROOT)))
    child = upgrade.python(
        str(HELPERS / "vendor_child.py"), str(upgrade.root), step, how
    )
    child.communicate()
    assert child.returncode == -signal.SIGKILL
    if step == "moved away":
        assert not (upgrade.root / "vllm").exists()
    else:
        assert is_old(upgrade) == (step != "swapped")
    upgrade.vendor()
    check_new(upgrade)


@pytest.mark.parametrize(("step", "how"), STEPS)
def test_ctrl_c_at_a_step_leaves_one_of_the_two_trees(
    step: str, how: str, upgrade: SampleRepo
) -> None:
    def interrupt(name: str) -> None:
        if name == step:
            raise KeyboardInterrupt

    exchange = swap.exchange if how == "exchange" else cannot_exchange
    with pytest.raises(KeyboardInterrupt):
        upgrade.vendor(Effects(step=interrupt, exchange=exchange))
    assert is_old(upgrade) == (step not in {"swapped", "moved away"})
    assert upgrade.read(MINE) == "mine\n"
    assert not upgrade.paths.staging.exists()
    upgrade.vendor()
    check_new(upgrade)


def test_ctrl_c_in_a_download_is_one_line_and_status_130(upgrade: SampleRepo) -> None:
    name = upgrade.lock.vllm.filename
    release = threading.Event()
    upgrade.index.faults[name] = [Fault(send=100, stall=release)]
    process = upgrade.start("vendor")
    assert upgrade.index.served.wait(120)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    release.set()
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[1:] == ["interrupted: run the same command again to go on"]
    assert is_old(upgrade)
    assert upgrade.run("vendor")[0] == 0
    check_new(upgrade)


def test_ctrl_c_while_waiting_for_another_run(upgrade: SampleRepo) -> None:
    with upgrade.paths.vendor_lock.open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = upgrade.start("vendor")
        assert process.stderr is not None
        assert "waiting for another run" in process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert err == "interrupted: run the same command again to go on\n"
    assert is_old(upgrade)


def test_a_second_run_waits_for_the_first(upgrade: SampleRepo) -> None:
    name = upgrade.lock.vllm.filename
    release = threading.Event()
    upgrade.index.faults[name] = [Fault(send=100, stall=release)]
    upgrade.env["PIP_RETRIES"] = "1"
    first = upgrade.start("vendor")
    assert upgrade.index.served.wait(120)
    second = upgrade.start("vendor")
    assert second.stderr is not None
    assert "waiting for another run" in second.stderr.readline()
    release.set()
    assert first.communicate(timeout=120)[0].startswith("vllm 0.24.0: 3 files")
    assert second.communicate(timeout=120)[0].startswith("vllm 0.24.0: up to date")
    check_new(upgrade)


def test_a_folder_that_cannot_be_renamed_is_replaced(
    upgrade: SampleRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    cross_device(upgrade.root / "vllm", monkeypatch)
    upgrade.vendor(Effects(exchange=cannot_exchange))
    check_new(upgrade)


def test_a_replacement_that_stops_half_way_loses_nothing(
    upgrade: SampleRepo, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = upgrade.root / "vllm"
    with monkeypatch.context() as patch:
        cross_device(tree, patch)

        def stop_in_the_tree(path: Path) -> None:
            if path != tree:
                remove_tree(path)
                return
            (tree / "mine.py").unlink()
            (tree / "version.py").unlink()
            raise KeyboardInterrupt

        patch.setattr("balance_tools.vendoring.swap.remove_tree", stop_in_the_tree)
        with pytest.raises(KeyboardInterrupt):
            upgrade.vendor(Effects(exchange=cannot_exchange))
    upgrade.vendor()
    check_new(upgrade)


def cross_device(tree: Path, patch: pytest.MonkeyPatch) -> None:
    """Make renames of `tree` fail as on an overlay file system, which needs root."""
    replace: Callable[[Path, Path], Path] = Path.replace

    def no_rename(self: Path, target: Path) -> Path:
        if self == tree:
            raise OSError(18, os.strerror(18), str(self))
        return replace(self, target)

    patch.setattr(Path, "replace", no_rename)


def test_a_file_that_is_too_big_for_a_limit_is_one_error(upgrade: SampleRepo) -> None:
    # The limit on a file's size fails a write as a full disk does, without root.
    upgrade.upgrade({**NEXT, "vllm/big.py": "0" * 3_000_000})
    code, out, err = upgrade.run("vendor", limits="ulimit -f 1000")
    assert (code, out) == (1, "")
    (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
    assert "pristine/vllm-0.24.0: cannot be read or written: File too large" in line
    assert is_old(upgrade)
    assert not upgrade.paths.staging.exists()


FULL_DISK = """
import os, shutil, subprocess, sys
from pathlib import Path
repo, disk = sys.argv[1:]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "none", disk], check=True)
shutil.copytree(repo, disk, symlinks=True, dirs_exist_ok=True)
os.environ["PYTHONPATH"] = disk + "/tools"
os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
for spare in (10_000, 60_000, 200_000, 450_000, 200_000, None):
    Path(disk, "filler").unlink(missing_ok=True)
    status = os.statvfs(disk)
    with open(disk + "/filler", "wb") as filler:
        if spare is not None:
            free = status.f_bavail * status.f_frsize
            os.posix_fallocate(filler.fileno(), 0, free - spare)
    run = subprocess.run(
        [sys.executable, "-m", "balance_tools", "vendor", "--only", "vllm"],
        cwd=disk, capture_output=True, text=True,
    )
    error = [line for line in run.stderr.splitlines() if "fetching" not in line]
    error = [line for line in error if "unpacking" not in line]
    old = not os.path.exists(disk + "/vllm/added.py")
    print(run.returncode, len(error), old, "No space left" in run.stderr, sep=",")
"""


def can_mount() -> bool:
    command = ["unshare", "-rm", "mount", "-t", "tmpfs", "none", "/mnt"]
    try:
        return subprocess.run(command, capture_output=True).returncode == 0
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_mount(), reason="may not mount in a user namespace")
def test_a_full_disk_leaves_the_old_tree(upgrade: SampleRepo, tmp_path: Path) -> None:
    lump = "".join(f"{i:06x}\n" for i in range(45_000))
    upgrade.upgrade({**NEXT, "vllm/lump.py": lump})
    assert upgrade.run("vendor", "--check")[0] == 1  # puts our tools in place
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["unshare", "-rm", sys.executable, "-c", FULL_DISK]
    run = subprocess.run(
        [*command, str(upgrade.root), str(disk)],
        env=upgrade.environment(),
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr
    *full, enough = run.stdout.splitlines()
    assert full == ["1,1,True,True"] * 5
    assert enough == "0,0,False,False"


def test_a_cache_that_is_no_folder_is_one_error(upgrade: SampleRepo) -> None:
    upgrade.paths.cache.rename(upgrade.root / "away")
    upgrade.paths.cache.write_text("a file in place of the cache")
    with pytest.raises(ToolError, match="cannot be read or written"):
        upgrade.vendor()
    assert is_old(upgrade)
