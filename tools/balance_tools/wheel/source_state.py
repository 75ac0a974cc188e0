"""Which commit the sources here are: by git, or by what a source archive says.

A source archive has no git, so it carries `commit.json`: the commit, and the hash of
every file in it. The same commit gives the same wheel from either.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import sha256_of
from balance_tools.manifest import files_of_ours
from balance_tools.run import git, listed_by_git, output_of
from vllm_balance.fingerprint import ALL_PACKAGES

ARCHIVE_RECORD = "commit.json"
"""In a source archive: its commit and files."""


@dataclass(frozen=True)
class SourceState:
    """What is known of the sources of a build."""

    commit: str | None
    """None outside git and outside a source archive."""
    dirty: bool | None
    """Whether the sources differ from that commit; None as above."""


def source_state(root: Path) -> SourceState:
    """Ask git, or else the record of a source archive."""
    if (root / ".git").exists():
        return _of_checkout(root)
    if (root / ARCHIVE_RECORD).is_file():
        return _of_archive(root)
    return SourceState(None, None)


def render_record(state: SourceState, root: Path, files: list[str]) -> str:
    """The text of the record of a source archive of `files`."""
    hashes = {name: sha256_of(root / name) for name in sorted(files)}
    return json.dumps({**asdict(state), "files": hashes}, indent=1) + "\n"


def source_files(root: Path) -> list[str]:
    """Every file that git tracks, or neither tracks nor ignores: what is ours."""
    names = listed_by_git(root, "--cached", "--others", "--exclude-standard")
    return [name for name in names if (root / name).is_file()]


def commit_time_s(root: Path) -> int:
    """When the commit was made, in seconds since 1970."""
    return int(output_of(git(root, "show", "--no-patch", "--format=%ct", "HEAD")))


def _of_checkout(root: Path) -> SourceState:
    """A file that git neither tracks nor ignores is a change: a wheel may have it."""
    try:
        head = output_of(git(root, "rev-parse", "HEAD")).strip()
        changes = output_of(
            git(root, "status", "--porcelain", "--untracked-files=normal")
        )
    except ToolError:
        # No git here, a checkout of another user, no commit yet: the commit is a
        # convenience, the hashes in the record are what identifies the sources.
        return SourceState(None, None)
    return SourceState(head, bool(changes.strip()))


def _of_archive(root: Path) -> SourceState:
    """Dirty: a file is not as it was packed, one was added, or it was dirty then."""
    data = json.loads((root / ARCHIVE_RECORD).read_text(encoding="utf-8"))
    changed = any(
        not (root / name).is_file() or sha256_of(root / name) != sha256
        for name, sha256 in data["files"].items()
    )
    added = any(
        f"{package}/{path}" not in data["files"]
        for package in ALL_PACKAGES
        for path in files_of_ours(root / package)
    )
    return SourceState(data["commit"], data["dirty"] or changed or added)
