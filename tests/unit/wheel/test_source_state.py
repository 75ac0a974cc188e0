"""A wheel records the commit of its own sources, and of no other repository."""

import subprocess

import pytest

from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.run import git, listed_by_git
from balance_tools.vendoring.checkout import make_checkout
from balance_tools.wheel.build_record import source_state


def commit(root, name):
    root.mkdir(exist_ok=True)
    (root / name).touch()
    who = ("-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "gc.auto=0")
    for words in (["init", "-q"], ["add", name], [*who, "commit", "-qm", name]):
        subprocess.run(["git", *words], cwd=root, check=True)
    return git(root, "rev-parse", "HEAD").text.strip()


def test_whatever_the_environment_says_it_is_the_repository_here(tmp_path, monkeypatch):
    theirs = commit(tmp_path / "theirs", "a")
    ours = commit(tmp_path / "ours", "b")
    assert ours != theirs
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "theirs/.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "theirs/.git/index"))
    monkeypatch.setenv("GIT_WORK_TREE", str(tmp_path / "theirs"))
    assert source_state(tmp_path / "ours") == (ours, False)
    assert listed_by_git(tmp_path / "ours") == ["b"]
    # Files of an archive, which lie in a checkout of something else.
    inner = tmp_path / "theirs/archive"
    inner.mkdir()
    assert source_state(inner) == (None, None)
    monkeypatch.delenv("GIT_DIR")
    assert git(inner, "rev-parse", "HEAD").status != 0


def in_git(root, *words):
    subprocess.run(["git", *words], cwd=root, check=True, capture_output=True)


@pytest.mark.parametrize("flag", ["--skip-worktree", "--assume-unchanged"])
def test_an_edit_that_git_is_told_to_overlook_is_one(tmp_path, flag):
    ours = commit(tmp_path, "a")
    in_git(tmp_path, "update-index", flag, "a")
    assert source_state(tmp_path) == (ours, False)
    (tmp_path / "a").write_text("edited")
    assert git(tmp_path, "status", "--porcelain").text == ""
    assert source_state(tmp_path) == (ours, True)
    (tmp_path / "a").unlink()
    (tmp_path / "a").symlink_to("b")
    assert source_state(tmp_path) == (ours, True)


def test_a_filter_that_changes_what_is_checked_out_is_a_change(tmp_path):
    (tmp_path / "a").write_text("one\n")
    ours = commit(tmp_path, "a")
    assert source_state(tmp_path) == (ours, False)
    in_git(tmp_path, "config", "core.autocrlf", "true")
    (tmp_path / "a").unlink()
    in_git(tmp_path, "checkout", "a")
    assert (tmp_path / "a").read_bytes() == b"one\r\n"
    assert git(tmp_path, "status", "--porcelain").text == ""
    assert source_state(tmp_path) == (ours, True)


def test_rules_of_this_machine_hide_no_new_file(tmp_path):
    commit(tmp_path, ".gitignore")
    (tmp_path / "vllm").mkdir()
    ours = commit(tmp_path, "vllm/a")
    (tmp_path / ".git/info/exclude").write_text("mine.*\n")
    (tmp_path / "mine.txt").touch()  # no part of a wheel
    assert source_state(tmp_path) == (ours, False)
    (tmp_path / "vllm/mine.py").touch()
    assert git(tmp_path, "status", "--porcelain").text == ""
    assert source_state(tmp_path) == (ours, True)


def test_no_checkout_is_made_of_a_repository_that_tracks_nothing(tmp_path):
    """As `git init` in the files of an archive leaves it."""
    assert git(tmp_path, "init", "-q").status == 0
    with pytest.raises(ToolError, match="expected files that git tracks, found none"):
        make_checkout(Paths(tmp_path), tmp_path / "other", tmp_path, None)
    assert not (tmp_path / "other").exists()
