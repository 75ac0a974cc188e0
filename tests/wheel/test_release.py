"""A release: the same bytes wherever it is made, all of it or nothing, and it works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from balance_tools.run import listed_by_git
from conftest import ROOT, VERSION
from environments import Environment
from try_out import try_out

COMMITTER = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (
        ("NAME", "A"),
        ("EMAIL", "a@example.org"),
        ("DATE", "2026-01-31T12:00:00Z"),
    )
}


def copy_repository(target: Path, umask: int, *, backwards: bool = False) -> Path:
    """A repository of one commit with the sources as they are now."""
    target.mkdir(parents=True)
    names = listed_by_git(ROOT, "--cached", "--others", "--exclude-standard")
    names = [name for name in names if (ROOT / name).is_file()]
    for name in sorted(names, reverse=backwards):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, path)
        path.chmod((0o777 if os.access(ROOT / name, os.X_OK) else 0o666) & ~umask)
    link_downloads(target)
    git = ["git", "-C", str(target)]
    for command in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["commit", "--quiet", "--message", "release"],
    ):
        subprocess.run([*git, *command], env=os.environ | COMMITTER, check=True)
    return target


def link_downloads(root: Path) -> None:
    (root / "build").mkdir()
    for name in ("cache", "pristine"):
        (root / "build" / name).symlink_to(ROOT / "build" / name)


def wheel_of(root: Path, umask: int = 0o022, **variables: str) -> str:
    """The sha256 of the reference wheel that is built in a copy."""
    return subprocess.run(
        [sys.executable, "-m", "balance_tools", "wheel"],
        cwd=root,
        env=os.environ | {"PYTHONPATH": f"{root / 'tools'}:{root}"} | variables,
        umask=umask,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.split()[0]


def test_elsewhere_it_is_the_same(reference_wheel: Path, tmp_path: Path) -> None:
    assert reference_wheel.is_file()  # the downloads are there
    one = copy_repository(tmp_path / "one", 0o022)
    other = copy_repository(tmp_path / "a longer name" / "other", 0o077, backwards=True)
    variables = {"TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "1"}
    first = wheel_of(one, TZ="UTC", LC_ALL="C")
    assert wheel_of(other, umask=0o077, **variables) == first


STUB = """#!/bin/sh
echo built >> calls
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
    copy_repository(root, 0o022)
    python = root / ".venv" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(STUB)
    python.chmod(0o755)
    (root / "CHANGELOG.md").write_text(f"## {VERSION} (2026-01-31)\n\n- x\n")
    git(root, "commit", "--quiet", "--all", "--message", "release")
    return root


def git(root: Path, *arguments: str) -> None:
    command = ["git", "-C", str(root), *arguments]
    subprocess.run(command, env=os.environ | COMMITTER, check=True)


def make_release(root: Path, *options: str, **variables: str) -> str:
    """Run the script; returns its complaint."""
    script, variables = root / "tools" / "release.sh", os.environ | variables
    run = subprocess.run(
        [script, *options], env=variables, capture_output=True, text=True
    )
    (root / "calls").unlink(missing_ok=True)
    assert (run.returncode == 0) == (run.stderr == ""), run.stderr
    return run.stderr


def test_a_release_is_made_once_and_whole(repository: Path) -> None:
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


def test_what_is_checked_before_the_build(repository: Path) -> None:
    changelog = repository / "CHANGELOG.md"
    changelog.write_text(changelog.read_text() + "- y\n")
    assert "expected no changes against commit" in make_release(repository)
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


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="try-") as folder:
        yield Path(folder) / "m"


def test_the_reference_wheel_serves_and_leaves_nothing(
    reference_wheel: Path, installed: Environment, short: Path
) -> None:
    """With nothing but Python: no other program is found, and home is empty."""
    left = try_out(reference_wheel, short, installed.packages)
    assert not list((short / "env").rglob("*vllm*"))
    # Upstream's cache and its sockets, as docs/install.md says.
    assert [f for f in left if not f.startswith(("home/.cache/vllm/", "tmp/"))] == []
