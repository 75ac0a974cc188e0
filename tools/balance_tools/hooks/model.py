"""The statuses and results of a rebase."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class PatchStatus(Enum):
    """The status of a patch, best first; the label is for people.

    `exit_code` is that of the command when this is the worst status.
    """

    UNTOUCHED = ("untouched", 0)
    CONTEXT_ONLY = ("context-only", 0)
    CONTENT_CHANGED = ("content-changed", 0)
    ALREADY_UPSTREAM = ("already-upstream", 3)
    CONFLICT = ("conflict", 5)
    TARGET_DELETED = ("target-deleted", 6)
    VANISHED = ("vanished", 8)
    MISFIT = ("does-not-fit", 9)

    def __init__(self, label: str, exit_code: int) -> None:
        self.label = label
        self.exit_code = exit_code

    @property
    def needs_human(self) -> bool:
        return self.exit_code != 0


def worst(statuses: Iterable[PatchStatus]) -> PatchStatus:
    order = list(PatchStatus)
    return max(statuses, key=order.index, default=PatchStatus.UNTOUCHED)


@dataclass(frozen=True)
class HookResult:
    path: str
    scope: str
    """Function or class that holds the hook, "" for the module."""
    old_line: int
    """First line in the old patched file."""
    new_line: int
    """The same in the new one; 0 if it is not placed."""
    status: PatchStatus
    """CONTEXT_ONLY when placed."""
    note: str = ""
    """What upstream changed around it, or why it has no place."""


@dataclass(frozen=True)
class PatchResult:
    package: str
    name: str
    status: PatchStatus
    hooks: tuple[HookResult, ...] = ()
    notes: tuple[str, ...] = ()
    dropped: bool = False

    @property
    def key(self) -> tuple[str, str]:
        return self.package, self.name

    @property
    def reasons(self) -> tuple[str, ...]:
        bad = (f"{h.path}: {h.note}" for h in self.hooks if h.status.needs_human)
        return (*bad, *self.notes) if self.status.needs_human else ()


@dataclass(frozen=True)
class FileVerdict:
    path: str
    content: bytes | None
    """The new content, without what could not be placed; None if the file is gone."""
    status: PatchStatus
    """The status of this file alone."""
    hooks: tuple[HookResult, ...] = ()
    notes: tuple[str, ...] = ()
