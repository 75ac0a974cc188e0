"""The journal of a bump: what is done, and what waits for a person."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree, replacing
from balance_tools.hooks.model import PatchResult, Status
from balance_tools.paths import Paths
from balance_tools.series.apply import Series, diff_file
from balance_tools.series.patchfile import Patch, parse_patch

Contents = Mapping[str, bytes | None]
"""Files by their paths in a tree; None for one that is gone."""


@dataclass(frozen=True)
class Plan:
    """One package: from which tree to which, and how far its series is."""

    package: str
    series: Series
    """Of the old tree."""
    old_tree: Path
    new_tree: Path
    old_label: str
    new_label: str
    now: Contents = field(default_factory=dict)
    """Every file that a patch has touched by now, on new upstream."""
    made: Mapping[str, bytes] = field(default_factory=dict)
    """The new text of each patch that is done and not left out, by its name."""

    def read(self, path: str) -> bytes | None:
        """Return a file of new upstream with the patches that are done.

        None if it is not there, or not a file.
        """
        if path in self.now:
            return self.now[path]
        file = self.new_tree / path
        return None if file.is_symlink() or not file.is_file() else file.read_bytes()

    def after(self, patch: Patch, contents: Contents) -> Plan:
        """Return the plan with one patch more, which makes files what they hold."""
        paths = sorted(contents, key=str.encode)
        diffs = (
            diff_file(path, self.read(path) or b"", contents[path] or b"")
            for path in paths
        )
        made = {**self.made, patch.name: patch.header.raw + b"".join(diffs)}
        return replace(self, now={**self.now, **contents}, made=made)


@dataclass(frozen=True)
class Session:
    """The state of one bump, written when it waits for a person."""

    target: str
    plans: tuple[Plan, ...]
    lock: str = ""
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

    def next_patch(self) -> tuple[Plan, Patch] | None:
        """Return the patch to place now, and its package; None if all are done."""
        count = len(self.results)
        every = [(plan, patch) for plan in self.plans for patch in plan.series.patches]
        return every[count] if count < len(every) else None

    def after(self, result: PatchResult, contents: Contents) -> Session:
        """Return the session with one patch more, and what that makes of files.

        How much of the text of the patch changed is seen here.
        """
        due = self.next_patch()
        assert due is not None
        plan, patch = due
        new = plan
        if not result.dropped:
            new = plan.after(patch, contents)
            result = _final(patch, new.made[patch.name], result)
        plans = tuple(new if one is plan else one for one in self.plans)
        results = (*self.results, result)
        return replace(self, plans=plans, results=results, pending=None, files=())


def _final(patch: Patch, raw: bytes, result: PatchResult) -> PatchResult:
    if result.status.needs_human:  # of a dry run
        return result
    if raw == patch.raw:
        status = Status.UNTOUCHED
    elif parse_patch(patch.name, raw).changes == patch.changes:
        status = Status.CONTEXT_ONLY
    else:
        status = Status.CONTENT_CHANGED
    hooks = tuple(replace(hook, status=status) for hook in result.hooks)
    return replace(result, status=status, hooks=hooks)


@dataclass(frozen=True)
class Work:
    """The folder of one bump below build/rebase/."""

    path: Path

    def empty(self) -> None:
        """Make the folder, with nothing in it."""
        remove_tree(self.path)
        self.path.mkdir(parents=True)

    @property
    def journal(self) -> Path:
        """The journal."""
        return self.path / "journal"

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
