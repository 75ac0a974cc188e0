"""The folder of one bump below build/rebase/: the request, and what a person decided.

It holds no state of the work itself, which is done anew each time: in seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from balance_tools.files import remove_tree, write_atomically
from balance_tools.paths import LOCK_NAME, Paths
from balance_tools.series.patchfile import Patch, parse_patch
from balance_tools.upstream.lock import Lock, dump_lock, load_lock

Decided = Mapping[tuple[str, str], Patch | None]
"""By package and name, patches as a person made them; None is left out."""


def decided_in(folder: Path) -> Decided:
    """Return the patches below patches/PACKAGE/; an empty one is left out."""
    return {
        (file.parent.name, file.name): parse_patch(file.name, raw) if raw else None
        for file in sorted(folder.glob("patches/*/*.patch"))
        for raw in [file.read_bytes()]
    }


@dataclass(frozen=True)
class Work:
    """The folder of one bump."""

    path: Path

    def empty(self) -> None:
        """Make the folder, with nothing in it."""
        remove_tree(self.path)
        self.path.mkdir(parents=True)

    def edited(self, package: str) -> Path:
        """New upstream with what is placed, for a person to edit."""
        return self.path / package

    @property
    def final(self) -> Path:
        """The new series, complete, laid out as in the repository."""
        return self.path / "final"

    def final_series(self, package: str) -> Path:
        """The new series of one package."""
        return self.final / "patches" / package

    def decide(self, package: str, name: str, raw: bytes) -> None:
        """Keep what a person made of a patch; nothing leaves it out."""
        file = self.path / "patches" / package / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(raw)

    def decided(self) -> Decided:
        """Return what a person made of patches."""
        return decided_in(self.path)

    def save(self, lock: Lock, line: str) -> None:
        """Write the request: the new releases, and the line to write."""
        (self.path / "line").write_text(line, encoding="utf-8")
        write_atomically(self.path / LOCK_NAME, dump_lock(lock))

    def load(self) -> tuple[Lock, str]:
        """Read the request, which is there while a bump waits for a person."""
        line = (self.path / "line").read_text(encoding="utf-8")
        return load_lock(self.path / LOCK_NAME), line

    def finish(self) -> None:
        """Drop the request."""
        (self.path / LOCK_NAME).unlink(missing_ok=True)


def work_root(paths: Paths) -> Path:
    """Return the folder of all bumps."""
    return paths.build / "rebase"


def in_progress(paths: Paths) -> Work | None:
    """Return the bump that is not finished, if there is one."""
    requests = sorted(work_root(paths).glob(f"*/{LOCK_NAME}"))
    return Work(requests[0].parent) if requests else None
