"""The journal of a rebase: what is done, what waits, and everything to go back with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree, replacing, write_atomically
from balance_tools.hooks.model import HookResult, PatchResult, Status
from balance_tools.paths import Paths

FORMAT = 2
TREES, PATCHES, FINISH, DONE = "trees", "patches", "finish", "done"


@dataclass(frozen=True)
class Plan:
    """One package: from which tree to which, and how far its series is.

    `tip` is the commit of new upstream with the patches that are done, "" before the
    repository is made; `commits` is one commit for each patch done ("" if dropped).
    """

    package: str
    old_tree: str
    new_tree: str
    old_label: str
    new_label: str
    tip: str = ""
    commits: tuple[str, ...] = ()

    @property
    def done(self) -> int:
        """How many patches are done."""
        return len(self.commits)


@dataclass(frozen=True)
class Pending:
    """A patch that waits for a person, and the files to look at."""

    result: PatchResult
    files: tuple[str, ...]


@dataclass(frozen=True)
class Session:
    """The state of one rebase, written after each step."""

    target: str
    stage: str
    plans: tuple[Plan, ...]
    lock: str
    """Text of the new lock; "" if the new upstream cannot be locked."""
    results: tuple[PatchResult, ...] = ()
    pending: Pending | None = None
    seconds: Mapping[str, float] = field(default_factory=dict)
    dry_run: bool = False
    stopped: bool = False
    """Whether it waits after a patch as asked; edits then amend that patch."""
    line: str = ""
    """Name of the supported release to write; "" replaces the pin."""

    def with_plan(self, plan: Plan) -> Session:
        """Return the session with one plan replaced."""
        plans = tuple(plan if p.package == plan.package else p for p in self.plans)
        return replace(self, plans=plans)

    def spent(self, what: str, seconds: float) -> Session:
        """Return the session with the time of a step added."""
        total = self.seconds.get(what, 0.0) + seconds
        return replace(self, seconds={**self.seconds, what: total})


@dataclass(frozen=True)
class Work:
    """The folder of one rebase below build/rebase/."""

    path: Path

    @property
    def state(self) -> Path:
        """The journal."""
        return self.path / "state.json"

    def repo(self, package: str) -> Path:
        """The two-tree repository of one package."""
        return self.path / package

    @property
    def former(self) -> Path:
        """Copies of the series and the lock as they were."""
        return self.path / "former"

    @property
    def final(self) -> Path:
        """The new lock and series, complete, laid out as in a checkout."""
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
            data = json.loads(self.state.read_text())
            if data.pop("format") != FORMAT:
                raise KeyError("format")
            return _session(data)
        except (ValueError, KeyError, TypeError) as error:
            raise ToolError(
                f"{self.state}: expected the journal of a rebase, found {error!r}; run "
                "tools/rebase.sh --abort"
            ) from error

    def save(self, session: Session) -> None:
        """Write the journal: either the old or the new one survives a crash."""
        data = {"format": FORMAT, **asdict(session)}
        write_atomically(self.state, json.dumps(data, indent=1, default=_plain))


def _plain(value: object) -> str:
    if isinstance(value, Status):
        return value.label
    raise TypeError(f"{type(value).__name__} in the journal")


def _session(data: dict[str, Any]) -> Session:
    pending = data.pop("pending")
    return Session(
        **{
            **data,
            "plans": tuple(
                Plan(**{**plan, "commits": tuple(plan["commits"])})
                for plan in data["plans"]
            ),
            "results": tuple(_result(result) for result in data["results"]),
        },
        pending=pending
        and Pending(_result(pending["result"]), tuple(pending["files"])),
    )


def _result(data: dict[str, Any]) -> PatchResult:
    hooks = tuple(
        HookResult(**{**hook, "status": Status.of(hook["status"])})
        for hook in data["hooks"]
    )
    return PatchResult(
        **{
            **data,
            "status": Status.of(data["status"]),
            "hooks": hooks,
            "notes": tuple(data["notes"]),
        }
    )


def work_root(paths: Paths) -> Path:
    """Return the folder of all rebases."""
    return paths.build / "rebase"


def in_progress(paths: Paths) -> Work | None:
    """Return the rebase that is not finished, if there is one."""
    for state in sorted(work_root(paths).glob("*/state.json")):
        work = Work(state.parent)
        session = work.load()
        if session.stage != DONE and not session.dry_run:
            return work
    return None


def save_former(paths: Paths, work: Work, packages: list[str]) -> None:
    """Copy the series and the lock, for --abort."""
    for package in packages:
        source = paths.patches(package)
        if source.is_dir():
            shutil.copytree(source, work.former / package)
        else:
            (work.former / package).mkdir(parents=True)
    shutil.copy2(paths.lock, work.former / paths.lock.name)


def install(source: Path, target: Path) -> None:
    """Make folder `target` equal to `source`; can be repeated after a crash."""
    new = target.with_name(f".{target.name}.new")
    old = target.with_name(f".{target.name}.old")
    if not _same_files(source, target):
        remove_tree(new)
        shutil.copytree(source, new)
        if target.exists():
            remove_tree(old)
            target.rename(old)
        new.rename(target)
    remove_tree(new)
    remove_tree(old)


def install_file(source: Path, target: Path) -> None:
    """Make file `target` equal to `source`; can be repeated after a crash."""
    if not target.exists() or target.read_bytes() != source.read_bytes():
        with replacing(target) as part:
            shutil.copy2(source, part)


def _same_files(one: Path, other: Path) -> bool:
    if not other.is_dir():
        return False
    files = [{p.name: p.read_bytes() for p in d.iterdir()} for d in (one, other)]
    return files[0] == files[1]
