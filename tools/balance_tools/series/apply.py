"""A patch series and its exact application: no fuzz, no offset, all or nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import replacing
from balance_tools.series.patchfile import FilePatch, Hunk, Patch, parse_patch
from balance_tools.series.seriesfile import read_series_file
from balance_tools.text import split_lines

_NEW_FILE_MODE = 0o644


@dataclass(frozen=True)
class Series:
    """The patches of one upstream, in order."""

    directory: Path
    patches: tuple[Patch, ...]

    @property
    def paths(self) -> tuple[str, ...]:
        """Every file that a patch touches, sorted, relative to the tree's root."""
        return tuple(sorted({f.path for patch in self.patches for f in patch.files}))


def load_series(directory: Path) -> Series:
    """Load `directory/series`; a missing directory or file is an empty series.

    Raises:
        ToolError: a patch is missing or cannot be parsed.
    """
    entries = read_series_file(directory)
    patches = tuple(_parse_in(directory, name, raw) for name, raw in entries)
    return Series(directory, patches)


def _parse_in(directory: Path, name: str, raw: bytes) -> Patch:
    try:
        return parse_patch(name, raw)
    except ToolError as error:
        raise ToolError(f"{directory}/{error}") from error


def patched_files(series: Series, tree: Path) -> dict[str, bytes | None]:
    """Return what every touched file of `tree` becomes; None is a deleted file.

    Nothing is written.

    Raises:
        ToolError: a hunk does not apply at exactly its line.
    """
    contents: dict[str, bytes | None] = {}
    for _, after in patched_steps(series, tree):
        contents = after
    return contents


def patched_steps(
    series: Series, tree: Path
) -> Iterator[tuple[Patch, dict[str, bytes | None]]]:
    """Yield each patch with every file touched so far, as that patch leaves it."""
    contents: dict[str, bytes | None] = {}
    for patch in series.patches:
        for file in patch.files:
            where = f"{series.directory / patch.name}: {file.path}"
            if file.path in contents:
                old = contents[file.path]
            else:
                old = _read(tree, file.path, where)
            contents[file.path] = apply_to_bytes(file, old, where)
        yield patch, dict(contents)


def apply_to_bytes(file: FilePatch, old: bytes | None, where: str) -> bytes | None:
    """Apply one file's hunks to its content; None stands for "no such file".

    Raises:
        ToolError: a hunk does not apply at exactly its line.
    """
    if file.creates:
        if old is not None:
            raise ToolError(
                f"{where}: the patch creates this file, but it exists; rebase the "
                "series with tools/rebase.sh"
            )
        return b"".join(file.hunks[0].target)
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
        _expect(hunk, lines, f"{where}, hunk {number}")
        result += lines[position:start]
        result += hunk.target
        position = start + len(hunk.source)
    result += lines[position:]
    if file.deletes:
        if result:
            raise ToolError(
                f"{where}: the patch deletes this file, but {len(result)} of its lines "
                "are not in the patch; rebase the series with tools/rebase.sh"
            )
        return None
    return b"".join(result)


def _expect(hunk: Hunk, lines: list[bytes], where: str) -> None:
    for index, expected in enumerate(hunk.source, hunk.first_source_index):
        found = lines[index] if index < len(lines) else None
        if found != expected:
            seen = "the end of the file" if found is None else repr(_text(found))
            raise ToolError(
                f"{where}, line {index + 1}: expected {_text(expected)!r}, found "
                f"{seen}; this is not the tree that the series was made for, rebase it "
                "with tools/rebase.sh"
            )


def _text(line: bytes) -> str:
    return line.removesuffix(b"\n").decode("utf-8", "backslashreplace")


def _read(tree: Path, path: str, where: str) -> bytes | None:
    """Read a file of the tree; refuse links, which could lead out of it."""
    current = tree
    for part in Path(path).parts:
        current = current / part
        if current.is_symlink():
            raise ToolError(
                f"{where}: {current} is a symbolic link; a series may only touch "
                "regular files of its tree"
            )
    return current.read_bytes() if current.is_file() else None


def apply_series(series: Series, tree: Path) -> None:
    """Apply the whole series to `tree`, with -p1, zero fuzz and zero offset.

    Every hunk is checked in memory first and every new content is staged beside its
    file before the first one is replaced, so an error leaves `tree` as it was. File
    modes are kept.

    Raises:
        ToolError: a hunk does not apply; it names patch, file, hunk and line.
        OSError: a file cannot be written.
    """
    write_files(tree, patched_files(series, tree))


def write_files(tree: Path, contents: Mapping[str, bytes | None]) -> None:
    """Write contents (None deletes) below `tree`: stage everything, then rename."""
    with ExitStack() as staged:
        for path, content in contents.items():
            if content is not None:
                target = tree / path
                part = staged.enter_context(replacing(target))
                part.write_bytes(content)
                part.chmod(target.stat().st_mode if target.exists() else _NEW_FILE_MODE)
    for path, content in contents.items():
        if content is None:
            (tree / path).unlink(missing_ok=True)
