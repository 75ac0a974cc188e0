"""A release: all of it or nothing, once."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from conftest import ROOT, VERSION

STUB = """#!/bin/sh
case $2 in
balance_tools) echo content > dist/a.whl; echo "0 dist/a.whl" ;;
pytest) exit ${INSPECTION:-0} ;;
esac
"""
"""Stands in for the Python of the tools, which builds and inspects for minutes."""


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A commit that could be released, and a stub that builds."""
    root = tmp_path / "repo"
    (root / "tools").mkdir(parents=True)
    shutil.copy(ROOT / "tools" / "release.sh", root / "tools")
    for name in ("upstream.toml", "distribution.toml", ".gitignore"):
        shutil.copy(ROOT / name, root)
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STUB)
    python.chmod(0o755)
    (root / "CHANGELOG.md").write_text(f"## {VERSION} (2026-01-31)\n\n- x\n")
    git(root, "init", "--quiet")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "release")
    return root


def git(root: Path, *arguments: str) -> None:
    name = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", "-C", root, *name, *arguments], check=True)


def make_release(root: Path, *options: str, **variables: str) -> str:
    script, variables = root / "tools" / "release.sh", os.environ | variables
    run = subprocess.run(
        [script, *options], env=variables, capture_output=True, text=True
    )
    assert (run.returncode == 0) == (run.stderr == ""), run.stderr
    return run.stderr


def test_a_release_is_made_once_and_whole(repository):
    dist = repository / "dist"
    with pytest.raises(AssertionError):
        make_release(repository, INSPECTION="1")
    assert [path.name for path in dist.iterdir()] == ["a.whl"]
    assert make_release(repository) == ""
    folder = dist / f"release-{VERSION}"
    assert {path.name for path in folder.iterdir()} == {"a.whl", "SHA256SUMS"}
    assert make_release(repository) == ""  # the same bytes
    (folder / "SHA256SUMS").write_text("others")
    assert "expected no release here, or the same bytes" in make_release(repository)
    assert (folder / "SHA256SUMS").read_text() == "others"


def test_what_is_checked_before_the_build(repository):
    changelog = repository / "CHANGELOG.md"
    changelog.write_text(changelog.read_text() + "- y\n")
    assert "expected no changes against commit" in make_release(repository)
    git(repository, "update-index", "--skip-worktree", changelog.name)
    assert "expected no changes against commit" in make_release(repository)
    git(repository, "update-index", "--no-skip-worktree", changelog.name)
    assert make_release(repository, "--trial") == ""
    git(repository, "tag", f"v{VERSION}")
    changelog.write_text("## Unreleased\n\n- x\n")
    git(repository, "commit", "--quiet", "--all", "--message", "more")
    assert f"expected a section '## {VERSION} (" in make_release(repository)
    changelog.write_text(f"## {VERSION} (2026-01-31)\n\n- z\n")
    git(repository, "commit", "--quiet", "--all", "--message", "again")
    assert f"without a tag, found v{VERSION} on" in make_release(repository)
    shutil.rmtree(repository / ".git")
    assert "expected a git checkout" in make_release(repository)
