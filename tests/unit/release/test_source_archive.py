"""The source archive: ours alone, the same bytes, and it knows its commit."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from balance_tools.release.sdist import write_sdist
from balance_tools.upstream.archive import extract_sdist
from balance_tools.wheel.source_state import SourceState, source_state

COMMITTER = {
    key: value
    for who in ("AUTHOR", "COMMITTER")
    for key, value in {
        f"GIT_{who}_NAME": "A",
        f"GIT_{who}_EMAIL": "a@example.org",
        f"GIT_{who}_DATE": "2026-01-31T12:00:00Z",
    }.items()
}
FILES = {
    "README.md": "read\n",
    ".gitignore": "/vllm/**\n!/vllm/**/\n!/vllm/ours.py\n",
    "vllm/ours.py": "x = 1\n",
    "run.sh": "#!/bin/sh\n",
}


def git(root: Path, *arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *arguments],
        env=os.environ | COMMITTER,
        check=True,
        capture_output=True,
        text=True,
    ).stdout


def repository(root: Path, names: list[str]) -> Path:
    """A commit of FILES, written in this order, and a file that git ignores."""
    git(root.parent, "init", "--quiet", str(root))
    for name in names:
        (root / name).parent.mkdir(exist_ok=True)
        (root / name).write_text(FILES[name])
    (root / "run.sh").chmod(0o755)
    (root / "vllm" / "upstream.py").write_text("y = 1\n")
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--message", "one")
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return repository(tmp_path / "repo", list(FILES))


def extracted(root: Path, folder: Path) -> Path:
    folder.mkdir()
    unpacked = folder / "vllm_balance-1.0+balance.1"
    extract_sdist(write_sdist(root, "1.0+balance.1", folder), unpacked)
    return unpacked


def test_it_has_what_git_tracks_and_what_describes_it(
    root: Path, tmp_path: Path
) -> None:
    copy = extracted(root, tmp_path / "out")
    found = {p.relative_to(copy).as_posix() for p in copy.rglob("*") if p.is_file()}
    assert found == {*FILES, "PKG-INFO", "commit.json"}
    assert all((copy / name).read_text() == text for name, text in FILES.items())
    assert os.access(copy / "run.sh", os.X_OK)
    assert not os.access(copy / "README.md", os.X_OK)


def test_an_archive_knows_its_commit(root: Path, tmp_path: Path) -> None:
    state = source_state(root)
    assert state == SourceState(git(root, "rev-parse", "HEAD").strip(), dirty=False)
    assert source_state(extracted(root, tmp_path / "out")) == state


@pytest.mark.parametrize("name", list(FILES))
def test_an_archive_that_was_changed_says_so(
    root: Path, tmp_path: Path, name: str
) -> None:
    copy = extracted(root, tmp_path / "out")
    (copy / name).unlink()
    assert source_state(copy).dirty
    (copy / name).write_text("other\n")
    assert source_state(copy).dirty


def test_an_archive_with_a_module_more_says_so(root: Path, tmp_path: Path) -> None:
    copy = extracted(root, tmp_path / "out")
    (copy / "vllm" / "more.py").touch()
    assert source_state(copy).dirty


def test_an_archive_of_a_changed_checkout_says_so(root: Path, tmp_path: Path) -> None:
    (root / "new.py").write_text("z = 1\n")
    copy = extracted(root, tmp_path / "out")
    assert (copy / "new.py").is_file()
    assert source_state(copy) == source_state(root)
    assert source_state(copy).dirty


def test_neither_checkout_nor_archive(tmp_path: Path) -> None:
    assert source_state(tmp_path) == SourceState(None, None)
