"""Lines: further upstream releases, each a lock and only the patches that differ.

Every other patch of a line is derived from the pin's, as a bump does, whenever the
sources of the line are made. A patch of its own says in its header which patch of the
pin it was adapted from (`Adapted-From`, the sha256 of its changed lines): when that
one changes, a person has to carry the change over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.hooks.model import PatchResult, Status
from balance_tools.paths import LOCK_NAME, Paths
from balance_tools.rebase.patches import moves_to, place_all
from balance_tools.rebase.work import Decided, Work, decided_in, work_root
from balance_tools.series.apply import load_series
from balance_tools.series.patchfile import Patch
from balance_tools.upstream.lock import Lock, dump_lock, load_lock

ADAPTED_FROM = "Adapted-From"


@dataclass(frozen=True)
class Line:
    """One folder below lines/: upstream.toml, and patches/PACKAGE/ for what differs."""

    folder: Path

    @property
    def name(self) -> str:
        """That of the folder."""
        return self.folder.name

    @property
    def lock(self) -> Lock:
        """Of its releases."""
        return load_lock(self.folder / LOCK_NAME)

    @property
    def own(self) -> Decided:
        """The patches that a person changed for it."""
        return decided_in(self.folder)


def all_lines(paths: Paths) -> list[Line]:
    """Return every line of the repository."""
    locks = sorted(paths.root.glob(f"lines/*/{LOCK_NAME}"))
    return [Line(lock.parent) for lock in locks]


def find_line(paths: Paths, name: str) -> Line:
    """Return a line of the repository.

    Raises:
        ToolError: there is none of this name.
    """
    known = {line.name: line for line in all_lines(paths)}
    if name not in known:
        raise ToolError(
            f"lines/{name}: expected a line, found none; there are "
            f"{', '.join(known) or 'none'}"
        )
    return known[name]


def write_line(
    paths: Paths, name: str, lock: Lock, results: Sequence[PatchResult], work: Work
) -> Path:
    """Write a line from a finished bump, in place of what it was; return its folder."""
    folder = paths.root / "lines" / name
    new = folder.with_name(f".{name}.new")
    remove_tree(new)
    new.mkdir(parents=True)
    (new / LOCK_NAME).write_text(dump_lock(lock), encoding="utf-8")
    by_hand = {key for key, patch in work.decided().items() if patch}
    for result in results:
        key = (result.package, result.name)
        if key in by_hand or result.status is Status.CONTENT_CHANGED:
            made = (work.final_series(result.package) / result.name).read_bytes()
            own = new / "patches" / result.package / result.name
            own.parent.mkdir(parents=True, exist_ok=True)
            header = f"{ADAPTED_FROM}: {change_sha256(_pinned(paths, *key))}\n".encode()
            own.write_bytes(made.replace(b"\n\n", b"\n" + header + b"\n", 1))
    remove_tree(folder)
    new.rename(folder)
    return folder


def derive(paths: Paths, line: Line) -> Work:
    """Make the whole series of a line below build/.

    Returns:
        The work folder, whose `final` holds the series.

    Raises:
        ToolError: a derived patch needs a decision, or a patch of its own does not
            follow the pin's.
    """
    check_own(paths, line)
    lock, work = line.lock, Work(work_root(paths) / f"line-{line.name}")
    work.empty()
    for result in place_all(work, moves_to(paths, lock), line.own, stop=False).results:
        if result.status.needs_human:
            raise ToolError(
                f"lines/{line.name}: {result.name} does not follow from the pin any "
                f"more, {result.status.label} ({'; '.join(result.reasons)}); "
                f"decide with tools/rebase.sh {lock.vllm.version} --ascend "
                f"{lock.vllm_ascend.version} --line {line.name}"
            )
    return work


def check_own(paths: Paths, line: Line) -> None:
    """Check that the patches of a line follow those of the pin.

    Raises:
        ToolError: one does not, or the pin has no patch of its name.
    """
    for (package, name), patch in line.own.items():
        wanted = change_sha256(_pinned(paths, package, name))
        if patch is None or patch.header.get(ADAPTED_FROM) != wanted:
            raise ToolError(
                f"lines/{line.name}/patches/{package}/{name}: expected it to follow "
                f"patches/{package}/{name}, found that the latter changed since; carry "
                f"that change over and write the field {ADAPTED_FROM}: {wanted}"
            )


def _pinned(paths: Paths, package: str, name: str) -> Patch:
    folder = paths.patches(package)
    for patch in load_series(folder).patches:
        if patch.name == name:
            return patch
    raise ToolError(
        f"{folder / 'series'}: expected {name}, which a line has a patch of its own "
        "for, found no such patch; rename or remove that one"
    )


def change_sha256(patch: Patch) -> str:
    """Hash the lines that a patch adds and takes out, wherever they stand."""
    return hashlib.sha256(repr(patch.changes).encode()).hexdigest()
