"""Further supported releases: another lock, and only the patches that differ.

Each is a folder below lines/: its lock, hashes, and the patches that a person changed
for it. Every other patch is derived from the pinned series, as a rebase does, whenever
its sources are made; the hashes prove that the result is the one that was
tested. Nothing is kept twice.
"""

from __future__ import annotations

import shutil
from dataclasses import replace

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.hooks.model import PatchResult, Status
from balance_tools.paths import Paths
from balance_tools.rebase.driver import make_trees, next_patch, rebase_patch
from balance_tools.rebase.finish import export
from balance_tools.rebase.repo import Repo
from balance_tools.rebase.session import TREES, Plan, Session, Work, work_root
from balance_tools.rebase.sources import pinned_trees, plans_between
from balance_tools.rebase.supported_release import (
    HASHES,
    Hashes,
    Own,
    SupportedRelease,
    change_sha256,
)
from balance_tools.series.apply import apply_to_bytes, load_series
from balance_tools.series.patchfile import Patch
from balance_tools.upstream.lock import load_lock
from vllm_balance.fingerprint import series_sha256


def write(paths: Paths, name: str, session: Session, work: Work) -> SupportedRelease:
    """Write a supported release from a finished rebase, in place of what it was."""
    release = SupportedRelease(name, paths.root / "lines" / name)
    new = SupportedRelease(name, release.folder.with_name(f".{name}.new"))
    remove_tree(new.folder)
    new.folder.mkdir(parents=True)
    new.lock_file.write_text(session.lock, encoding="utf-8")
    for result in session.results:
        by_hand = any(hook.how == "hand" for hook in result.hooks)
        if by_hand or result.status is Status.CONTENT_CHANGED:
            folder = new.folder / "patches" / result.package
            folder.mkdir(parents=True, exist_ok=True)
            shutil.copy2(work.final_series(result.package) / result.name, folder)
    new.write_hashes(_hashes(paths, new, work))
    remove_tree(release.folder)
    new.folder.rename(release.folder)
    return release


def derive(paths: Paths, release: SupportedRelease) -> tuple[Work, Session]:
    """Make the whole series of a supported release below build/ and prove their hashes.

    Returns:
        The work folder, whose `final` holds the series, and the journal.

    Raises:
        ToolError: a derived patch needs a decision, a patch of its own does not
            follow the pin's, or a hash is another one.
    """
    for package, own in release.own_patches().items():
        for name, now in _own(paths, package, own).items():
            if release.hashes().own.get(name, now).pin != now.pin:
                raise ToolError(_stale(release, package, name))
    work, session = _derive(paths, release)
    for package, wanted in release.hashes().series.items():
        got = series_sha256(work.final, package)
        if got != wanted:
            raise ToolError(
                f"lines/{release.name}/{HASHES}: expected the {package} series "
                f"{wanted}, found {got}, for the pinned series changed; renew it with "
                f"tools/rebase.sh --renew-line {release.name} and verify it"
            )
    return work, session


def renew(paths: Paths, release: SupportedRelease) -> list[str]:
    """Write the hashes of a supported release anew; returns what changed, in words.

    Raises:
        ToolError: a patch was not placed, or a patch of its own was not
            edited although the pin's patch of that name changed. Nothing is written.
    """
    before = release.hashes()
    for package, own in release.own_patches().items():
        for name, now in _own(paths, package, own).items():
            was = before.own.get(name, now)
            if was.pin != now.pin and was.line == now.line:
                raise ToolError(_stale(release, package, name))
    work, _ = _derive(paths, release)
    after = _hashes(paths, release, work)
    if after == before:
        return []
    release.write_hashes(after)
    return [
        f"lines/{release.name}/{HASHES}: {package} series {old[:12]} → {new[:12]}"
        for package, new in after.series.items()
        if (old := before.series.get(package, "none")) != new
    ] or [f"lines/{release.name}/{HASHES}: what its own patches were made from"]


def _stale(release: SupportedRelease, package: str, name: str) -> str:
    return (
        f"lines/{release.name}/patches/{package}/{name}: expected it to follow "
        f"patches/{package}/{name}, found that only the latter changed since; carry "
        f"that change over, then run tools/rebase.sh --renew-line {release.name}"
    )


def _hashes(paths: Paths, release: SupportedRelease, work: Work) -> Hashes:
    own: dict[str, Own] = {}
    for package, patches in release.own_patches().items():
        own |= _own(paths, package, patches)
    packages = sorted(path.name for path in (work.final / "patches").iterdir())
    return Hashes({name: series_sha256(work.final, name) for name in packages}, own)


def _own(paths: Paths, package: str, own: dict[str, Patch]) -> dict[str, Own]:
    """Hash patches of a supported release, and those of the pin they stand for.

    Raises:
        ToolError: the pin has no patch of that name.
    """
    folder = paths.patches(package)
    pinned = {patch.name: patch for patch in load_series(folder).patches}
    for name in own:
        if name not in pinned:
            raise ToolError(
                f"{folder / 'series'}: expected {name}, which a folder below "
                "lines/ has a patch of its own for, found no such patch; rename or "
                "remove that one"
            )
    return {
        name: Own(change_sha256(pinned[name]), change_sha256(patch))
        for name, patch in own.items()
    }


def _derive(paths: Paths, release: SupportedRelease) -> tuple[Work, Session]:
    pin, lock = load_lock(paths.lock), release.lock()
    work = Work(work_root(paths) / f"line-{release.name}")
    remove_tree(work.path)
    work.path.mkdir(parents=True)
    series = {name: load_series(paths.patches(name)) for name in pin.packages}
    plans = plans_between(pinned_trees(paths, pin), pinned_trees(paths, lock))
    session = Session(release.name, TREES, plans, release.lock_text, dry_run=True)
    session = make_trees(work, session, series)
    own = release.own_patches()
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
                f"lines/{release.name}: {patch.name} does not follow from the pin any "
                f"more, {result.status.label} ({'; '.join(why or result.notes)}); "
                f"decide with tools/rebase.sh {lock.vllm.version} --ascend "
                f"{lock.vllm_ascend.version} --line {release.name}"
            )
    return work, export(work, session, series)


def _take(work: Work, session: Session, plan: Plan, override: Patch) -> Session:
    """Apply a patch of the supported release itself, exactly, and commit it."""
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
