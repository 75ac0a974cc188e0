"""On a bad day a rebase says one clear sentence, and the former state is intact."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.rebase.scan import releases, scan, scan_markdown
from balance_tools.upstream.lock import load_lock
from killed import ALL, killer
from rebase_samples import ENGINE, UPSTREAM, Files, make_sdist, rebase, tracked

NEWER = ENGINE.replace(b"class Engine", b"LIMIT = 8\n\n\nclass Engine")


pytestmark = pytest.mark.usefixtures("types_fit")


@pytest.fixture
def archive(tmp_path):
    files: Files = {**UPSTREAM, "vllm/engine.py": NEWER}
    return make_sdist(tmp_path, "vllm-2.0", files)


@pytest.fixture
def index(index, archive, tmp_path):
    """It has two releases of vLLM, one of another layout, and a plugin."""
    files: Files = {f"src/{path}": content for path, content in UPSTREAM.items()}
    for path in (archive, make_sdist(tmp_path, "vllm-3.0", files)):
        index.add(path.name, path.read_bytes())
    index.add("vllm_ascend-1.0.tar.gz", b"never read")
    return index


def test_a_release_is_looked_up_by_its_version(root, index):
    assert rebase(root, "2.0") == 0
    assert load_lock(root / "upstream.toml").vllm.version == "2.0"


def test_a_scan_leaves_yanked_releases_out_and_says_so(index, capsys):
    index.yanked["vllm-2.0.tar.gz"] = "wrong answers"
    found = releases("1.5..4.0")
    assert [one.version for one in found] == ["3.0"]
    assert "vllm 2.0 was yanked (wrong answers); left out" in capsys.readouterr().err


def test_a_scan_of_a_range_without_a_release(index):
    with pytest.raises(ToolError, match=r"scan: no final release .* in 7\.0\.\.8\.0"):
        releases("7.0..8.0")
    for wrong in ("7.0", "a..b", "7.0..8.0..9.0"):
        with pytest.raises(ToolError, match="scan: expected two versions as in"):
            releases(wrong)


def test_a_scan_goes_on_behind_a_release_of_another_layout(root, index):
    rows = scan(Paths(root), releases("2.0..3.0"))
    assert [row.placed for row in rows.values()] == [True, False]
    text = scan_markdown(Paths(root), rows)
    assert "Placed with no human: 1 of 2." in text
    assert "(our files and hooks fit): 1 of 2." in text
    assert "| 2.0 | context-only | 1 |" in text
    assert "- 3.0: vllm-3.0.tar.gz: expected vllm/ at its top, found src" in text
    assert rows["3.0"].status.needs_human


def test_diff_is_asked_for_and_git_and_quilt_are_not(
    root, archive, tmp_path, monkeypatch, capsys
):
    before, diff = tracked(root), str(shutil.which("diff"))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert rebase(root, "--sdist", str(archive)) == 1
    assert "diff: expected this program on PATH, found none" in capsys.readouterr().err
    assert tracked(root) == before
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/diff").symlink_to(diff)
    assert rebase(root, "--sdist", str(archive)) == 0


@pytest.mark.parametrize("effect", [3, 70])
def test_killed_before_the_last_step_it_begins_again(root, archive, effect):
    before = tracked(root)
    program = [sys.executable, "-c", killer(ALL), str(effect), "rebase", "bump"]
    program += ["--root", str(root), "--sdist", str(archive)]
    tools = str(Path(__file__).resolve().parents[3] / "tools")
    killed = subprocess.run(program, env={**os.environ, "PYTHONPATH": tools})
    assert killed.returncode == -signal.SIGKILL
    assert tracked(root) == before
    assert rebase(root, "--sdist", str(archive)) == 0
    assert load_lock(root / "upstream.toml").vllm.version == "2.0"
