"""Place the patches of a series on new upstream, until a person must decide."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.hooks.model import FileVerdict, PatchResult, Status, worst
from balance_tools.hooks.outcome import Sides, check_edit, decide
from balance_tools.manifest import walk
from balance_tools.paths import Paths
from balance_tools.rebase.sources import pristine_tree
from balance_tools.rebase.work import Decided, Work
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
from balance_tools.upstream.lock import Lock, load_lock


@dataclass(frozen=True)
class Move:
    """One package: its series, upstream that it is for, and what to move it to."""

    package: str
    series: Series
    old: Path
    new: Path


def moves_to(paths: Paths, lock: Lock) -> list[Move]:
    """Return what moves the series from the pin to the releases of `lock`."""
    return [
        Move(
            package,
            load_series(paths.patches(package)),
            pristine_tree(old, paths, package),
            pristine_tree(lock.packages[package], paths, package),
        )
        for package, old in load_lock(paths.lock).packages.items()
    ]


@dataclass
class NewSeries:
    """The series of one package on new upstream, as far as it is placed."""

    move: Move
    now: dict[str, bytes] = field(default_factory=dict)
    """Every file that a patch has touched by now, on new upstream."""
    made: dict[str, bytes] = field(default_factory=dict)
    """The new text of each patch that is not left out, by its name."""

    def read(self, path: str) -> bytes | None:
        """Return a file of new upstream with the patches that are placed, if any."""
        file = self.move.new / path
        old = file.read_bytes() if file.is_file() else None
        return self.now.get(path, old)

    def text_of(self, patch: Patch, files: Files) -> bytes:
        """Return the new text of a patch, which makes these files what they are."""
        before = {path: self.read(path) or b"" for path in files}
        return patch_text(patch, before, files)

    def add(self, patch: Patch, files: Files) -> None:
        """Add a patch behind the others."""
        self.made[patch.name] = self.text_of(patch, files)
        self.now.update(files)

    def judge(
        self, patch: Patch, file: FilePatch, before: Files, after: Files
    ) -> FileVerdict:
        """Judge a file of a patch that turns `before` into `after` in the old tree."""
        path, upstream, move = file.path, self.read(file.path), self.move
        if upstream is None:
            note = f"{path} is gone in {move.new.name}"
            return FileVerdict(path, None, None, Status.TARGET_DELETED, notes=(note,))
        names = (move.new.name, move.old.name, patch.name)
        return decide(file, Sides(before[path], after[path], upstream, *names))

    def write(self, folder: Path) -> None:
        """Write the new series.

        Raises:
            ToolError: it does not give the tree that was proven; a fault of these
                tools.
        """
        folder.mkdir(parents=True)
        for name, raw in self.made.items():
            (folder / name).write_bytes(raw)
        (folder / SERIES).write_text("".join(f"{name}\n" for name in self.made))
        patched = patched_files(load_series(folder), self.move.new)
        for path, content in patched.items():
            if content != self.read(path):
                raise ToolError(
                    f"{folder}: {path} is not what was proven; this is a fault of "
                    "tools/rebase.sh, report it"
                )


@dataclass(frozen=True)
class Pending:
    """A patch that waits for a person, behind those of its series that are placed."""

    series: NewSeries
    patch: Patch
    verdicts: Sequence[FileVerdict]

    @property
    def files(self) -> list[str]:
        """The files to look at for it."""
        return [one.path for one in self.verdicts if one.status.needs_human]


@dataclass(frozen=True)
class Placed:
    """What became of each patch, in order; the last one is `pending`, if one is."""

    results: tuple[PatchResult, ...]
    pending: Pending | None = None

    @property
    def status(self) -> Status:
        """The worst status; a patch that is left out does not count."""
        return worst(one.status for one in self.results if not one.dropped)


def place_all(
    work: Work,
    moves: Sequence[Move],
    decided: Decided,
    *,
    stop: bool = True,
    quiet: bool = False,
) -> Placed:
    """Rebase patch by patch onto new upstream, as far as no person is needed.

    What is `decided` is taken as it is. Without `stop`, it goes on behind a patch that
    needs a person. If none waits, the new series is below `work`, and is proven.

    Raises:
        ToolError: a series does not apply to the tree that it was made for, or a patch
            of `decided` does not apply.
    """
    results: list[PatchResult] = []
    every = [NewSeries(move) for move in moves]
    for series in every:
        package, old = series.move.package, series.move.old
        for patch, before, after in patched_steps(series.move.series, old):
            found = [series.judge(patch, f, before, after) for f in patch.files]
            files: Files = {v.path: v.partial for v in found if v.partial is not None}
            result = _result(package, patch, found)
            if (package, patch.name) in decided:
                own = decided[package, patch.name]
                result = _decided(result, dropped=own is None)
                files = _patched(series, own) if own else {}
            elif result.status.needs_human and stop:
                return Placed((*results, result), Pending(series, patch, found))
            if not result.dropped:
                series.add(patch, files)
                result = _final(patch, series.made[patch.name], result)
            results.append(result)
            if not quiet:
                said = result.status.label if result.status.needs_human else "placed"
                print(f"{package}: {patch.name}: {said}", file=sys.stderr, flush=True)
    remove_tree(work.final)
    for series in every:
        series.write(work.final_series(series.move.package))
    return Placed(tuple(results))


def _result(package: str, patch: Patch, verdicts: Sequence[FileVerdict]) -> PatchResult:
    status = worst(verdict.status for verdict in verdicts)
    hooks = tuple(hook for verdict in verdicts for hook in verdict.hooks)
    notes = tuple(note for verdict in verdicts for note in verdict.notes)
    return PatchResult(package, patch.name, status, hooks, notes)


def _decided(result: PatchResult, dropped: bool) -> PatchResult:
    """Return the result of a patch that a person took in hand."""
    if dropped:
        notes = (*result.notes, "left out by a person")
        return replace(result, notes=notes, dropped=True)
    changed = Status.CONTENT_CHANGED
    hooks = tuple(replace(hook, status=changed) for hook in result.hooks)
    notes = (*result.notes, f"was {result.status.label}; decided by a person")
    return replace(result, status=changed, hooks=hooks, notes=notes)


def _patched(series: NewSeries, patch: Patch) -> Files:
    return {
        file.path: apply_to_bytes(
            file, series.read(file.path), f"{patch.name}: {file.path}"
        )
        for file in patch.files
    }


def _final(patch: Patch, raw: bytes, result: PatchResult) -> PatchResult:
    """Return the result with how much of the text of the patch changed."""
    if result.status.needs_human:  # it did not stop there
        return result
    if raw == patch.raw:
        status = Status.UNTOUCHED
    elif parse_patch(patch.name, raw).changes == patch.changes:
        status = Status.CONTEXT_ONLY
    else:
        status = Status.CONTENT_CHANGED
    hooks = tuple(replace(hook, status=status) for hook in result.hooks)
    return replace(result, status=status, hooks=hooks)


def leave_for_person(work: Work, pending: Pending) -> None:
    """Copy new upstream with what is placed, and the conflicts."""
    series, package = pending.series, pending.series.move.package
    top = work.edited(package)
    remove_tree(top)
    tree = series.move.new / package
    shutil.copytree(tree, top / package)
    marked = {one.path: one.content for one in pending.verdicts}
    for path, content in {**series.now, **marked}.items():
        if content is not None:
            (top / path).write_bytes(content)


def take_edit(work: Work, pending: Pending) -> None:
    """Take what a person made of the patch that waits.

    Raises:
        ToolError: conflict markers are left, a file is not Python, or came or went, or
            nothing changed.
    """
    series, patch = pending.series, pending.patch
    package, tree = series.move.package, series.move.new
    top = work.edited(package)
    paths = {*walk(top / package), *walk(tree / package)}
    files: dict[str, bytes] = {}
    for path in sorted(f"{package}/{path}" for path in paths):
        file, was = top / path, series.read(path)
        content = file.read_bytes() if file.is_file() else None
        if content == was:
            continue
        if content is None or was is None:
            raise ToolError(
                f"{file}: expected an edit, found that the file is "
                f"{'gone' if content is None else 'new'}; a hook only adds code, and a "
                "new file belongs to files of ours"
            )
        check_edit(file)
        files[path] = content
    if not files:
        raise ToolError(
            f"{top}: nothing is changed for {patch.name}; edit "
            f"{', '.join(pending.files)}, or leave the patch out with "
            "tools/rebase.sh skip"
        )
    work.decide(package, patch.name, series.text_of(patch, files))
