"""A patch series: applied exactly (no fuzz, no offset), and written as quilt does."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.run import capture
from balance_tools.series.patchfile import FilePatch, Patch, parse_patch
from balance_tools.text import read_text, split_lines

SERIES = "series"
# GNU diff makes the hunks because quilt calls it: other programs place an inserted
# block differently when its first line equals the line after it. The options are those
# of tools/quiltrc.
CONTEXT_LINES = 2
_SAME, _DIFFERENT = 0, 1


Files = Mapping[str, bytes]
"""The contents of files, by their paths in a tree."""


@dataclass(frozen=True)
class Series:
    directory: Path
    patches: tuple[Patch, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(sorted({f.path for patch in self.patches for f in patch.files}))


def load_series(directory: Path) -> Series:
    """Load the patches that `directory/series` lists, in order.

    Comments (`#`) and empty lines are skipped.
    """
    listing = directory / SERIES
    if not listing.is_file():
        raise ToolError(
            f"{listing}: expected the list of patches, found no file; restore it from "
            "git"
        )
    patches: dict[str, Patch] = {}
    for number, line in enumerate(read_text(listing).splitlines(), 1):
        name = line.split("#", 1)[0].strip()
        if not name:
            continue
        path = directory / name
        if name in patches or len(name.split()) != 1 or path.parent != directory:
            raise ToolError(
                f"{listing}: line {number}: expected the plain name of another patch "
                f"(every patch is applied once, with -p1), found {name!r}"
            )
        if not path.is_file():
            raise ToolError(
                f"{listing}: line {number}: {path} does not exist; add the patch or "
                "remove the line"
            )
        try:
            patches[name] = parse_patch(name, path.read_bytes())
        except ToolError as error:
            raise ToolError(f"{directory}/{error}") from error
    return Series(directory, tuple(patches.values()))


def patched_files(series: Series, tree: Path) -> dict[str, bytes]:
    """Return what every touched file of `tree` becomes; nothing is written."""
    steps = patched_steps(series, tree)
    return {path: text for _, _, after in steps for path, text in after.items()}


def patched_steps(series: Series, tree: Path) -> Iterator[tuple[Patch, Files, Files]]:
    now: dict[str, bytes] = {}
    for patch in series.patches:
        before: dict[str, bytes] = {}
        after: dict[str, bytes] = {}
        for file in patch.files:
            where, path = f"{series.directory / patch.name}: {file.path}", file.path
            old = now.get(path)
            if old is None and (tree / path).is_file():
                old = (tree / path).read_bytes()
            after[path] = apply_to_bytes(file, old, where)
            before[path] = old or b""
        now |= after
        yield patch, before, after


def apply_to_bytes(file: FilePatch, old: bytes | None, where: str) -> bytes:
    """Apply one file's hunks to its content; None stands for "no such file"."""
    if old is None:
        raise ToolError(
            f"{where}: the patch changes this file, but it does not exist; rebase the "
            "series with tools/rebase.sh"
        )
    lines = split_lines(old)
    result: list[bytes] = []
    position = 0
    for number, hunk in enumerate(file.hunks, 1):
        start = hunk.first_source_index
        if start < position:
            raise ToolError(f"{where}: hunk {number} overlaps the one before it")
        for index, expected in enumerate(hunk.source, start):
            line = lines[index] if index < len(lines) else None
            if line != expected:
                text = "the end of the file" if line is None else repr(_text(line))
                raise ToolError(
                    f"{where}, hunk {number}, line {index + 1}: expected "
                    f"{_text(expected)!r}, found {text}; this is not the tree that the "
                    "series was made for, rebase it with tools/rebase.sh"
                )
        result += lines[position:start]
        result += hunk.target
        position = start + len(hunk.source)
    return b"".join([*result, *lines[position:]])


def _text(line: bytes) -> str:
    return line.removesuffix(b"\n").decode("utf-8", "backslashreplace")


def diff_file(path: str, old: bytes, new: bytes) -> bytes:
    command = ["diff", f"-U{CONTEXT_LINES}"]
    with tempfile.TemporaryDirectory() as name:
        for prefix, content in (("a", old), ("b", new)):
            (Path(name) / prefix).write_bytes(content)
            command += ["--label", f"{prefix}/{path}"]
        command += [f"{name}/a", f"{name}/b"]
        run = capture(command, env={**os.environ, "LC_ALL": "C"})
    if run.status not in (_SAME, _DIFFERENT):
        raise ToolError(f"diff: {path}: {run.tail}")
    if run.output.startswith(b"Binary files"):
        raise ToolError(f"{path}: binary content cannot be patched; keep it out")
    return run.output


def export_series(series: Series, tree: Path) -> dict[str, bytes]:
    """Return the canonical bytes of every patch by its name, on its pristine tree."""
    return {
        patch.name: patch_text(patch, before, after)
        for patch, before, after in patched_steps(series, tree)
    }


def patch_text(patch: Patch, before: Files, after: Files) -> bytes:
    paths = sorted(after, key=str.encode)
    diffs = (diff_file(path, before[path], after[path]) for path in paths)
    return patch.header.raw + b"".join(diffs)
