"""Which commit the sources here are, as git says."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.run import git, output_of


@dataclass(frozen=True)
class SourceState:
    """What is known of the sources of a build."""

    commit: str | None
    """None outside git."""
    dirty: bool | None
    """Whether the sources differ from that commit; None as above."""


def source_state(root: Path) -> SourceState:
    """Ask git. A file that it neither tracks nor ignores is a change."""
    if not (root / ".git").exists():
        return SourceState(None, None)
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
