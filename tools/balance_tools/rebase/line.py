"""Lines: further upstream releases, each a lock and only the patches that differ.

Every other patch of a line is derived from the pin's, as a bump does, whenever the
sources of the line are made. A patch in the line names in its header the patch of the
pin that it was adapted from (`Adapted-From`, the sha256 of its changed lines): when
that one changes, a person has to carry the change over.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import write_atomically
from balance_tools.paths import LOCK_NAME, Paths
from balance_tools.rebase.move import Moved, Own, move_series
from balance_tools.rebase.sources import pristine_tree
from balance_tools.series.apply import load_series
from balance_tools.series.patchfile import Patch, parse_patch
from balance_tools.upstream.lock import Lock, dump_lock, load_lock

ADAPTED_FROM = "Adapted-From"


@dataclass(frozen=True)
class Line:
    """One folder below lines/: upstream.toml, and the patches that differ."""

    folder: Path

    @property
    def name(self) -> str:
        return self.folder.name

    @property
    def lock(self) -> Lock:
        return load_lock(self.folder / LOCK_NAME)

    @property
    def own(self) -> Own:
        """The patches that a person changed for it; an empty file leaves one out."""
        return {
            (file.parent.name, file.name): parse_patch(file.name, raw) if raw else None
            for file in sorted(self.folder.glob("patches/*/*.patch"))
            for raw in [file.read_bytes()]
        }


def all_lines(paths: Paths) -> list[Line]:
    locks = sorted(paths.root.glob(f"lines/*/{LOCK_NAME}"))
    return [Line(lock.parent) for lock in locks]


def find_line(paths: Paths, name: str) -> Line:
    lines = {line.name: line for line in all_lines(paths)}
    if name not in lines:
        raise ToolError(
            f"lines/{name}: expected a line, found none; there are "
            f"{', '.join(lines) or 'none'}"
        )
    return lines[name]


def move_all(paths: Paths, lock: Lock, own: Own) -> list[Moved]:
    return [
        move_series(
            package,
            load_series(paths.patches(package)),
            pristine_tree(old, paths, package),
            pristine_tree(lock.packages[package], paths, package),
            own,
            lock.packages[package].version,
        )
        for package, old in load_lock(paths.lock).packages.items()
    ]


def write_line(paths: Paths, line: Line, lock: Lock, moved: Iterable[Moved]) -> None:
    """Write a line from a finished bump, file by file: what is right stays."""
    texts = {series.package: series.texts for series in moved}
    for key, patch in line.own.items():
        if patch is not None:
            header = f"{ADAPTED_FROM}: {change_sha256(_pinned(paths, *key))}"
            text = texts[key[0]][key[1]].decode("utf-8", "surrogateescape")
            text = text.replace("\n\n", f"\n{header}\n\n", 1)
            write_atomically(line.folder.joinpath("patches", *key), text)
    write_atomically(line.folder / LOCK_NAME, dump_lock(lock))


def derive(paths: Paths, line: Line) -> Path:
    check_own(paths, line)
    lock, folder = line.lock, paths.build / "rebase" / f"line-{line.name}"
    for moved in move_all(paths, lock, line.own):
        for result in moved.results:
            if result.status.needs_human:
                raise ToolError(
                    f"lines/{line.name}: {result.name} does not follow from the pin "
                    f"any more, {result.status.label} ({'; '.join(result.reasons)}); "
                    f"decide with tools/rebase.sh {lock.vllm.version} --ascend "
                    f"{lock.vllm_ascend.version} --line {line.name}"
                )
        moved.write(folder / moved.package)
    return folder


def check_own(paths: Paths, line: Line, unfinished: bool = False) -> None:
    """Check that the patches of a line follow those of the pin.

    In an `unfinished` line a patch that a person just wrote need not say so.
    """
    for (package, name), patch in line.own.items():
        expected = change_sha256(_pinned(paths, package, name))
        follows = patch.header.get(ADAPTED_FROM) if patch else expected
        if follows != expected and not (unfinished and follows is None):
            raise ToolError(
                f"lines/{line.name}/patches/{package}/{name}: expected it to follow "
                f"patches/{package}/{name}, found that the latter changed since; carry "
                f"that change over and write the field {ADAPTED_FROM}: {expected}"
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
