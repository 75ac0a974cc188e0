"""Move a series of patches to new upstream: a function, and the proof of its outcome.

A hook goes where the syntax says that it belongs. A patch with a hook that has no clear
place is refused with the reason, and those behind it are tried all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from balance_tools.advisories.table import is_fixed
from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.hooks.model import FileVerdict, PatchResult, PatchStatus, worst
from balance_tools.hooks.placement import decide
from balance_tools.rebase.merge import Undecided
from balance_tools.series.apply import (
    SERIES,
    Files,
    Series,
    apply_to_bytes,
    load_series,
    patch_text,
    patched_files,
    patched_steps,
)
from balance_tools.series.patchfile import FilePatch, Patch, parse_patch

NO_CLEAR_PLACE = (PatchStatus.CONFLICT, PatchStatus.TARGET_DELETED)

Own = Mapping[tuple[str, str], Patch | None]
"""By package and name, patches as a person wrote them for the new release; None is left
out.
"""


@dataclass(frozen=True)
class Moved:
    """The series of one package on new upstream."""

    package: str
    series: Series
    """The series before the move."""
    old: Path
    """The tree of upstream that it was made for."""
    new: Path
    """The tree of upstream that it is moved to."""
    results: tuple[PatchResult, ...]
    """What became of each patch, in order."""
    texts: Mapping[str, bytes]
    """By name, each patch that is not left out, without hooks that have no place."""
    files: Files
    """What every touched file becomes."""
    undecided: tuple[Undecided, ...]
    """Files in which a hook has no clear place."""

    @property
    def status(self) -> PatchStatus:
        """The worst status; a patch that is left out does not count."""
        return worst(one.status for one in self.results if not one.dropped)

    def write(self, folder: Path) -> None:
        """Write the new series into `folder`, which is replaced.

        Raises:
            ToolError: it does not give the files that were proven; a fault of these
                tools.
        """
        remove_tree(folder)
        folder.mkdir(parents=True)
        for name, raw in self.texts.items():
            (folder / name).write_bytes(raw)
        (folder / SERIES).write_text("".join(f"{name}\n" for name in self.texts))
        for path, content in patched_files(load_series(folder), self.new).items():
            if content != self.files[path]:
                raise ToolError(
                    f"{folder}: {path} is not what was proven; this is a fault of "
                    "tools/rebase.sh, report it"
                )


def move_series(
    package: str,
    series: Series,
    old: Path,
    new: Path,
    own: Own | None = None,
    version: str = "0",
) -> Moved:
    """Move a series from one tree of upstream to another; nothing is written.

    `version` is that of the new tree: a patch that it has no need of is left out.

    Raises:
        ToolError: it does not apply to the old tree.
    """
    own = own or {}
    results: list[PatchResult] = []
    texts: dict[str, bytes] = {}
    now: dict[str, bytes] = {}
    undecided: list[Undecided] = []
    for patch, base, patched in patched_steps(series, old):
        key = (package, patch.name)
        mine = own.get(key, patch)
        fixed = is_fixed(patch, version)
        if mine is None or fixed:
            why = f"fixed in {patch.header.get('Fixed-In')}" if fixed else "by a person"
            said = (f"left out: {why}",)
            results.append(
                PatchResult(*key, PatchStatus.UNTOUCHED, (), said, dropped=True)
            )
            continue
        upstream = {file.path: _read(new, now, file.path) for file in mine.files}
        if mine is patch:
            found = [
                decide(path, base[path], patched[path], content, new.name)
                for path, content in upstream.items()
            ]
            undecided += [
                Undecided(
                    package,
                    patch.name,
                    path,
                    base[path],
                    patched[path],
                    content,
                    (old.name, new.name),
                )
                for (path, content), verdict in zip(
                    upstream.items(), found, strict=True
                )
                if content is not None and verdict.status in NO_CLEAR_PLACE
            ]
        else:
            found = [_apply(file, upstream[file.path], mine) for file in mine.files]
        files = {one.path: one.content for one in found if one.content is not None}
        before = {path: content or b"" for path, content in upstream.items()}
        texts[patch.name] = raw = patch_text(patch, before, files)
        now |= files
        hooks = tuple(hook for one in found for hook in one.hooks)
        notes = tuple(note for one in found for note in one.notes)
        status = worst(one.status for one in found)
        if mine is patch and not status.needs_human:
            status = _how_much(patch, raw)
        results.append(PatchResult(*key, status, hooks, notes))
    return Moved(
        package, series, old, new, tuple(results), texts, now, tuple(undecided)
    )


def _read(tree: Path, now: Files, path: str) -> bytes | None:
    """A file of new upstream with the patches before this one, if it is there."""
    if path in now or not (tree / path).is_file():
        return now.get(path)
    return (tree / path).read_bytes()


def _apply(file: FilePatch, upstream: bytes | None, mine: Patch) -> FileVerdict:
    """What a patch that a person wrote makes of one file."""
    try:
        content = apply_to_bytes(file, upstream, f"{mine.name} of the line")
    except ToolError as error:
        said = str(error).partition(";")[0]
        return FileVerdict(file.path, upstream, PatchStatus.CONFLICT, notes=(said,))
    note = f"{file.path}: decided by a person"
    return FileVerdict(file.path, content, PatchStatus.CONTENT_CHANGED, notes=(note,))


def _how_much(patch: Patch, raw: bytes) -> PatchStatus:
    """The status of a patch whose hooks all have a place, by how its text changed."""
    if raw == patch.raw:
        return PatchStatus.UNTOUCHED
    same = parse_patch(patch.name, raw).changes == patch.changes
    return PatchStatus.CONTEXT_ONLY if same else PatchStatus.CONTENT_CHANGED
