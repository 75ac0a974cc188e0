"""The journal of a bump: what is done, and what waits for a person."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import replacing
from balance_tools.hooks.model import PatchResult
from balance_tools.paths import Paths

Contents = Mapping[str, bytes | None]
"""Files by their paths in a tree; None for one that is gone."""


@dataclass(frozen=True)
class Plan:
    """One package: from which tree to which, and how far its series is."""

    package: str
    old_tree: Path
    new_tree: Path
    old_label: str
    new_label: str
    done: tuple[Contents, ...] = ()
    """For each patch that is done, every file that one has touched by then."""

    @property
    def now(self) -> Contents:
        """What the patches that are done make of new upstream."""
        return self.done[-1] if self.done else {}

    def read(self, path: str, done: int | None = None) -> bytes | None:
        """Return a file of new upstream with the patches that are done, or so many.

        None if it is not there, or not a file.
        """
        for files in self.done[:done][-1:]:
            if path in files:
                return files[path]
        file = self.new_tree / path
        return None if file.is_symlink() or not file.is_file() else file.read_bytes()


@dataclass(frozen=True)
class Session:
    """The state of one bump, written when it waits for a person."""

    target: str
    plans: tuple[Plan, ...]
    lock: str
    """Text of the new lock; "" if the new upstream cannot be locked."""
    results: tuple[PatchResult, ...] = ()
    pending: PatchResult | None = None
    """A patch that waits for a person."""
    files: tuple[str, ...] = ()
    """The files to look at for it."""
    dry_run: bool = False
    line: str = ""
    """Name of the line to write; "" replaces the pin."""

    def plan(self, package: str) -> Plan:
        """Return the plan of a package."""
        return next(plan for plan in self.plans if plan.package == package)

    def after(self, result: PatchResult, contents: Contents) -> Session:
        """Return the session with one patch more, and what that makes of files."""
        old = self.plan(result.package)
        new = replace(old, done=(*old.done, {**old.now, **contents}))
        plans = tuple(new if plan is old else plan for plan in self.plans)
        results = (*self.results, result)
        return replace(self, plans=plans, results=results, pending=None, files=())


@dataclass(frozen=True)
class Work:
    """The folder of one bump below build/rebase/."""

    path: Path

    @property
    def journal(self) -> Path:
        """The journal."""
        return self.path / "journal"

    def edited(self, package: str) -> Path:
        """New upstream with what is placed, for a person to edit."""
        return self.path / package

    @property
    def final(self) -> Path:
        """The new lock and series, complete, laid out in the same way."""
        return self.path / "final"

    def final_series(self, package: str) -> Path:
        """The new series of one package."""
        return self.final / "patches" / package

    def load(self) -> Session:
        """Read the journal.

        Raises:
            ToolError: it is damaged or of another version of the tools.
        """
        try:
            session: Session = pickle.loads(self.journal.read_bytes())
        # Of damaged bytes, unpickling may raise nearly anything.
        except Exception as error:
            raise ToolError(
                f"{self.journal}: expected the journal of a bump, found {error!r}; "
                f"remove {self.path} and begin again"
            ) from error
        return session

    def save(self, session: Session) -> None:
        """Write the journal: either the old or the new one survives a crash."""
        with replacing(self.journal) as part:
            part.write_bytes(pickle.dumps(session))


def work_root(paths: Paths) -> Path:
    """Return the folder of all bumps."""
    return paths.build / "rebase"


def in_progress(paths: Paths) -> Work | None:
    """Return the bump that is not finished, if there is one."""
    journals = sorted(work_root(paths).glob("*/journal"))
    return Work(journals[0].parent) if journals else None
