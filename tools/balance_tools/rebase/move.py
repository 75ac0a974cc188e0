"""Move a series of patches to new upstream: a function, and the proof of its outcome.

A hook goes where the syntax says that it belongs. A patch with a hook that has no clear
place is refused with the reason, and those behind it are tried all the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

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
from balance_tools.series.fixed import is_fixed
from balance_tools.series.patchfile import FilePatch, Patch, parse_patch

NO_CLEAR_PLACE = (PatchStatus.CONFLICT, PatchStatus.TARGET_DELETED)

Own = Mapping[tuple[str, str], Patch | None]
"""By package and name, patches as a person wrote them for the new release; None is left
out.
"""


@dataclass(frozen=True)
class Moved:
    package: str
    series: Series
    old: Path
    new: Path
    results: tuple[PatchResult, ...]
    texts: Mapping[str, bytes]
    """By name, each patch that is not left out, without hooks that have no place."""
    files: Files
    undecided: tuple[Undecided, ...]

    @property
    def status(self) -> PatchStatus:
        """The worst status; a patch that is left out does not count."""
        return worst(result.status for result in self.results if not result.dropped)

    def write(self, folder: Path) -> None:
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
    """
    own = own or {}
    results: list[PatchResult] = []
    texts: dict[str, bytes] = {}
    now: dict[str, bytes] = {}
    undecided: list[Undecided] = []
    for patch, base, patched in patched_steps(series, old):
        key = (package, patch.name)
        given = own.get(key, patch)
        fixed = is_fixed(patch, version)
        if given is None or fixed:
            by = f"fixed in {patch.header.get('Fixed-In')}" if fixed else "by a person"
            left_out = (f"left out: {by}",)
            results.append(
                PatchResult(*key, PatchStatus.UNTOUCHED, (), left_out, dropped=True)
            )
            continue
        upstream = {file.path: _read(new, now, file.path) for file in given.files}
        if given is patch:
            verdicts = [
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
                    upstream.items(), verdicts, strict=True
                )
                if content is not None and verdict.status in NO_CLEAR_PLACE
            ]
        else:
            verdicts = [_apply(f, upstream[f.path], given) for f in given.files]
        files = {v.path: v.content for v in verdicts if v.content is not None}
        before = {path: content or b"" for path, content in upstream.items()}
        texts[patch.name] = raw = patch_text(patch, before, files)
        now |= files
        hooks = tuple(hook for verdict in verdicts for hook in verdict.hooks)
        notes = tuple(note for verdict in verdicts for note in verdict.notes)
        status = worst(verdict.status for verdict in verdicts)
        if given is patch and not status.needs_human:
            status = _how_much(patch, raw)
        results.append(PatchResult(*key, status, hooks, notes))
    return Moved(
        package, series, old, new, tuple(results), texts, now, tuple(undecided)
    )


def _read(tree: Path, now: Files, path: str) -> bytes | None:
    if path in now or not (tree / path).is_file():
        return now.get(path)
    return (tree / path).read_bytes()


def _apply(file: FilePatch, upstream: bytes | None, patch: Patch) -> FileVerdict:
    try:
        content = apply_to_bytes(file, upstream, f"{patch.name} of the line")
    except ToolError as error:
        note = str(error).partition(";")[0]
        return FileVerdict(file.path, upstream, PatchStatus.CONFLICT, notes=(note,))
    note = f"{file.path}: decided by a person"
    return FileVerdict(file.path, content, PatchStatus.CONTENT_CHANGED, notes=(note,))


def _how_much(patch: Patch, raw: bytes) -> PatchStatus:
    """The status of a patch whose hooks all have a place, by how its text changed."""
    if raw == patch.raw:
        return PatchStatus.UNTOUCHED
    same = parse_patch(patch.name, raw).changes == patch.changes
    return PatchStatus.CONTEXT_ONLY if same else PatchStatus.CONTENT_CHANGED
