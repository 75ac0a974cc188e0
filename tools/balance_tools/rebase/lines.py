"""Further supported lines: another lock, and only the patches that differ.

A line is a folder below lines/: its lock, the hash of each of its series, and the
patches that a person changed for it. Every other patch is derived from the pinned
series, as a rebase does, whenever the line's sources are made; the hashes prove that
the result is the one that was tested. Nothing is kept twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import tomlkit

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.lock import Lock, load_lock
from balance_tools.patchfile import Patch, parse_patch
from balance_tools.paths import Paths
from balance_tools.pristine import ensure_pristine
from balance_tools.rebase.driver import make_trees, next_patch, rebase_patch
from balance_tools.rebase.finish import export
from balance_tools.rebase.model import PatchResult, Status
from balance_tools.rebase.repo import Repo
from balance_tools.rebase.session import TREES, Plan, Session, Work, work_root
from balance_tools.series import Series, apply_to_bytes, load_series

HASHES = "series.toml"
_NOTE = """\
The sha256 of the whole series of this line, by package. Patches that are not in this
folder are derived from those of the pin.
"""


@dataclass(frozen=True)
class Line:
    """One line; `folder` holds upstream.toml, series.toml and changed patches."""

    name: str
    folder: Path

    @classmethod
    def find(cls, paths: Paths, name: str) -> Line:
        """Return a line of the repository.

        Raises:
            ToolError: there is none of this name.
        """
        line = cls(name, paths.root / "lines" / name)
        if Path(name).name != name or not (line.folder / HASHES).is_file():
            known = sorted(p.parent.name for p in paths.root.glob(f"lines/*/{HASHES}"))
            raise ToolError(
                f"lines/{name}: expected a line, found none; there are "
                f"{', '.join(known) or 'none'}"
            )
        return line

    @classmethod
    def write(cls, paths: Paths, name: str, session: Session, final: Path) -> Line:
        """Write a line from a finished rebase, in place of what it was before."""
        line = cls(name, paths.root / "lines" / name)
        new = line.folder.with_name(f".{name}.new")
        remove_tree(new)
        new.mkdir(parents=True)
        (new / paths.lock.name).write_text(session.lock, encoding="utf-8")
        hashes = tomlkit.document()
        for text in _NOTE.splitlines():
            hashes.add(tomlkit.comment(text))
        for plan in session.plans:
            hashes.add(plan.package, load_series(final / plan.package).sha256)
        (new / HASHES).write_text(tomlkit.dumps(hashes), encoding="utf-8")
        for result in session.results:
            by_hand = any(hook.how == "hand" for hook in result.hooks)
            if by_hand or result.status is Status.CONTENT_CHANGED:
                folder = new / "patches" / result.package
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy2(final / result.package / result.name, folder)
        remove_tree(line.folder)
        new.rename(line.folder)
        return line

    @property
    def lock_text(self) -> str:
        """The lock of the line."""
        return (self.folder / "upstream.toml").read_text(encoding="utf-8")

    def lock(self) -> Lock:
        """Load the lock of the line."""
        return load_lock(self.folder / "upstream.toml")

    def hashes(self) -> Mapping[str, str]:
        """Return the sha256 of each series, by package."""
        text = (self.folder / HASHES).read_text(encoding="utf-8")
        data: Mapping[str, str] = tomlkit.parse(text).unwrap()
        return data

    def override(self, package: str) -> Series:
        """Return the patches that a person changed for this line; no series file."""
        folder = self.folder / "patches" / package
        entries = sorted(folder.glob("*.patch"))
        patches = tuple(_read(path) for path in entries)
        return Series(folder, patches, "")


def _read(path: Path) -> Patch:
    return parse_patch(path.name, path.read_bytes())


def derive(paths: Paths, line: Line) -> tuple[Work, Session]:
    """Make the whole series of a line below build/ and prove their hashes.

    Returns:
        The work folder, whose `final` holds the series, and the journal.

    Raises:
        ToolError: a derived patch needs a decision, or a hash is another one.
    """
    pin, lock = load_lock(paths.lock), line.lock()
    work = Work(work_root(paths) / f"line-{line.name}")
    remove_tree(work.path)
    work.path.mkdir(parents=True)
    series = {name: load_series(paths.patches(name)) for name in pin.packages}
    plans = tuple(
        Plan(
            package=name,
            old_tree=str(ensure_pristine(pin.packages[name], paths)),
            new_tree=str(ensure_pristine(lock.packages[name], paths)),
            old_label=f"{name} {pin.packages[name].version}",
            new_label=f"{name} {lock.packages[name].version}",
        )
        for name in pin.packages
    )
    session = Session(line.name, TREES, plans, line.lock_text, dry_run=True)
    session = make_trees(work, session, series)
    changed = {
        p.package: {o.name: o for o in line.override(p.package).patches} for p in plans
    }
    while following := next_patch(session, series):
        plan, patch = following
        override = changed[plan.package].get(patch.name)
        if override is not None:
            session = _take(work, session, plan, override)
            continue
        session = rebase_patch(work, session, plan, patch)
        if session.results[-1].status.needs_human:
            raise ToolError(
                f"lines/{line.name}: {patch.name} does not follow from the pin any "
                f"more ({session.results[-1].status.label}); renew the line with "
                f"tools/rebase.sh {lock.vllm.version} --line {line.name}"
            )
    session = export(work, session, series)
    for package, wanted in line.hashes().items():
        got = load_series(work.final / package).sha256
        if got != wanted:
            raise ToolError(
                f"lines/{line.name}/{HASHES}: expected the {package} series {wanted}, "
                f"found {got}; the pinned series changed, renew the line with "
                f"tools/rebase.sh {lock.vllm.version} --line {line.name}"
            )
    return work, session


def _take(work: Work, session: Session, plan: Plan, override: Patch) -> Session:
    """Apply a patch of the line itself, exactly, and commit it."""
    repo = Repo(work.repo(plan.package))
    repo.reset(plan.tip)
    contents = {
        file.path: apply_to_bytes(
            file, repo.read(plan.tip, file.path), f"{override.name}: {file.path}"
        )
        for file in override.files
    }
    repo.write(contents)
    commit = repo.commit(override.name)
    done = replace(plan, tip=commit, commits=(*plan.commits, commit))
    result = PatchResult(
        plan.package, override.name, Status.CONTENT_CHANGED, commit=commit
    )
    return replace(
        session.with_plan(done), results=(*session.results, result), pending=None
    )
