"""Further supported lines: another lock, and only the patches that differ.

A line is a folder below lines/: its lock, hashes, and the patches that a person changed
for it. Every other patch is derived from the pinned series, as a rebase does, whenever
the line's sources are made; the hashes prove that the result is the one that was
tested. Nothing is kept twice.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.paths import Paths
from balance_tools.rebase.driver import make_trees, next_patch, rebase_patch
from balance_tools.rebase.finish import export
from balance_tools.rebase.model import PatchResult, Status
from balance_tools.rebase.repo import Repo
from balance_tools.rebase.session import TREES, Plan, Session, Work, work_root
from balance_tools.rebase.supported_release import (
    HASHES,
    Hashes,
    Line,
    Own,
    change_sha256,
)
from balance_tools.series.apply import apply_to_bytes, load_series
from balance_tools.series.patchfile import Patch
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine


def write(paths: Paths, name: str, session: Session, final: Path) -> Line:
    """Write a line from a finished rebase, in place of what it was before."""
    line = Line(name, paths.root / "lines" / name)
    new = Line(name, line.folder.with_name(f".{name}.new"))
    remove_tree(new.folder)
    new.folder.mkdir(parents=True)
    new.lock_file.write_text(session.lock, encoding="utf-8")
    for result in session.results:
        by_hand = any(hook.how == "hand" for hook in result.hooks)
        if by_hand or result.status is Status.CONTENT_CHANGED:
            folder = new.folder / "patches" / result.package
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(final / result.package / result.name, folder)
    new.write_hashes(_hashes(paths, new, final))
    remove_tree(line.folder)
    new.folder.rename(line.folder)
    return line


def derive(paths: Paths, line: Line) -> tuple[Work, Session]:
    """Make the whole series of a line below build/ and prove their hashes.

    Returns:
        The work folder, whose `final` holds the series, and the journal.

    Raises:
        ToolError: a derived patch needs a decision, a patch of the line does not
            follow the pin's, or a hash is another one.
    """
    for package, own in line.own_patches().items():
        for name, now in _own(paths, package, own).items():
            if line.hashes().own.get(name, now).pin != now.pin:
                raise ToolError(_stale(line, package, name))
    work, session = _derive(paths, line)
    for package, wanted in line.hashes().series.items():
        got = load_series(work.final / package).sha256
        if got != wanted:
            raise ToolError(
                f"lines/{line.name}/{HASHES}: expected the {package} series {wanted}, "
                f"found {got}, for the pinned series changed; renew the line with "
                f"tools/rebase.sh --renew-line {line.name} and verify it"
            )
    return work, session


def renew(paths: Paths, line: Line) -> list[str]:
    """Write the hashes of a line anew; returns what changed, in words.

    Raises:
        ToolError: a patch was not placed, or a patch of the line itself was not
            edited although the pin's patch of that name changed. Nothing is written.
    """
    before = line.hashes()
    for package, own in line.own_patches().items():
        for name, now in _own(paths, package, own).items():
            was = before.own.get(name, now)
            if was.pin != now.pin and was.line == now.line:
                raise ToolError(_stale(line, package, name))
    work, _ = _derive(paths, line)
    after = _hashes(paths, line, work.final)
    if after == before:
        return []
    line.write_hashes(after)
    return [
        f"lines/{line.name}/{HASHES}: {package} series {old[:12]} → {new[:12]}"
        for package, new in after.series.items()
        if (old := before.series.get(package, "none")) != new
    ] or [f"lines/{line.name}/{HASHES}: what its own patches were made from"]


def _stale(line: Line, package: str, name: str) -> str:
    return (
        f"lines/{line.name}/patches/{package}/{name}: expected it to follow "
        f"patches/{package}/{name}, found that only the latter changed since; carry "
        f"that change over, then run tools/rebase.sh --renew-line {line.name}"
    )


def _hashes(paths: Paths, line: Line, final: Path) -> Hashes:
    own: dict[str, Own] = {}
    for package, patches in line.own_patches().items():
        own |= _own(paths, package, patches)
    packages = sorted(path.name for path in final.iterdir() if path.is_dir())
    return Hashes({name: load_series(final / name).sha256 for name in packages}, own)


def _own(paths: Paths, package: str, own: dict[str, Patch]) -> dict[str, Own]:
    """Hash the patches of a line, and those of the pin that they stand for.

    Raises:
        ToolError: the pin has no patch of that name.
    """
    folder = paths.patches(package)
    pinned = {patch.name: patch for patch in load_series(folder).patches}
    for name in own:
        if name not in pinned:
            raise ToolError(
                f"{folder / 'series'}: expected {name}, which a line has a patch of "
                "its own for, found no such patch; rename or remove the line's"
            )
    return {
        name: Own(change_sha256(pinned[name]), change_sha256(patch))
        for name, patch in own.items()
    }


def _derive(paths: Paths, line: Line) -> tuple[Work, Session]:
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
    own = line.own_patches()
    while following := next_patch(session, series):
        plan, patch = following
        override = own[plan.package].get(patch.name)
        if override is not None:
            session = _take(work, session, plan, override)
            continue
        session = rebase_patch(work, session, plan, patch)
        result = session.results[-1]
        if result.status.needs_human:
            why = [hook.note for hook in result.hooks if hook.status.needs_human]
            raise ToolError(
                f"lines/{line.name}: {patch.name} does not follow from the pin any "
                f"more, {result.status.label} ({'; '.join(why or result.notes)}); "
                f"decide with tools/rebase.sh {lock.vllm.version} --ascend "
                f"{lock.vllm_ascend.version} --line {line.name}"
            )
    return work, export(work, session, series)


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
