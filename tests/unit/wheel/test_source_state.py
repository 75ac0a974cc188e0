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


def test_no_checkout_is_made_of_a_repository_that_tracks_nothing(tmp_path):
    """As `git init` in the files of an archive leaves it."""
    assert git(tmp_path, "init", "-q").status == 0
    with pytest.raises(ToolError, match="expected files that git tracks, found none"):
        make_checkout(Paths(tmp_path), tmp_path / "other", tmp_path, None)
    assert not (tmp_path / "other").exists()
