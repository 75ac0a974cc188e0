"""Whatever stops a run, nothing of ours is lost, and the next run finishes it."""

import signal
import subprocess
import threading

import pytest

from index_samples import Fault
from killed import COPIES, killer
from repo_samples import NEXT, OURS, PATCHED

MINE = "vllm/mine.py"
COMMAND = ("vendor",)


@pytest.fixture
def upgrade(repo):
    """A repository whose tree is of one release and whose lock names the next."""
    repo.vendor()
    repo.write(MINE, "mine\n")
    repo.upgrade(NEXT)
    return repo


def check_new(repo):
    assert repo.tree() == {
        "__init__.py": "",
        "version.py": PATCHED,
        "added.py": "added\n",
        "mine.py": "mine\n",
        "v1/core/sched/balance/rank/gate.py": "# ours\n",
    }
    assert repo.git("status", "--porcelain", OURS) == ""


def killed(repo, at):
    child = repo.python("-c", killer(COPIES), str(at), *COMMAND)
    out, _ = child.communicate()
    return child.returncode, out


@pytest.mark.timeout(900)
def test_after_kill_9_before_a_change_of_a_file_the_next_run_succeeds(upgrade):
    saved = upgrade.root.with_name("saved")
    subprocess.run(["cp", "-a", str(upgrade.root), str(saved)], check=True)
    code, out = killed(upgrade, 0)
    assert code == 0
    effects = int(out.split()[-1])
    assert effects > 2
    half = 0
    for at in sorted({1, effects // 2, effects}):  # others are alike
        subprocess.run(["rm", "-r", str(upgrade.root)], check=True)
        subprocess.run(["cp", "-a", str(saved), str(upgrade.root)], check=True)
        assert killed(upgrade, at)[0] == -signal.SIGKILL
        assert upgrade.read(MINE) == "mine\n"
        if '"inputs": {}' in upgrade.read("vllm/.vendor.json"):
            upgrade.write("vllm/version.py", "one = 1\ntw")  # half a copy, and no edit
            half += 1
        upgrade.vendor()
        check_new(upgrade)
    assert half > 0


def test_ctrl_c_in_a_download_is_one_line_and_status_130(upgrade):
    release = threading.Event()
    upgrade.index.faults[upgrade.lock.vllm.filename] = [Fault(send=100, stall=release)]
    process = upgrade.start(*COMMAND)
    assert upgrade.index.served.wait(120)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    release.set()
    assert process.returncode == 130
    assert out == ""
    assert err.splitlines()[1:] == ["interrupted: run the same command again to go on"]
    tree = upgrade.tree()
    assert "added.py" not in tree
    assert "v1/core/sched/scheduler.py" in tree
    assert upgrade.run(*COMMAND)[0] == 0
    check_new(upgrade)


def test_a_second_run_waits_for_the_first(upgrade):
    release = threading.Event()
    upgrade.index.faults[upgrade.lock.vllm.filename] = [Fault(send=100, stall=release)]
    upgrade.env["PIP_RETRIES"] = "1"
    first = upgrade.start(*COMMAND)
    assert upgrade.index.served.wait(120)
    second = upgrade.start(*COMMAND)
    assert second.stderr is not None
    assert "waiting for another run" in second.stderr.readline()
    release.set()
    assert first.communicate(timeout=120)[0].startswith("vllm 0.24.0: 3 files")
    assert second.communicate(timeout=120)[0].startswith("vllm 0.24.0: up to date")
    check_new(upgrade)
