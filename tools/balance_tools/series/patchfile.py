"""One patch file: its DEP-3 header and its hunks, byte for byte."""

from __future__ import annotations

import re
from dataclasses import dataclass
from email import message_from_string
from email.message import Message
from functools import cached_property
from pathlib import PurePosixPath

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchedFile, PatchSet

from balance_tools.errors import ToolError

CONTEXT, ADDED, REMOVED = " ", "+", "-"

# Where quilt, too, ends the header (`patch_header` in its patchfns).
_BODY = re.compile(rb"^(?:(?:---|\*\*\*|Index:)[ \t][^ \t]|diff -)", re.MULTILINE)
_NO_NEWLINE = "\\"


@dataclass(frozen=True)
class Header:
    raw: bytes

    @cached_property
    def fields(self) -> Message:
        return message_from_string(self.raw.decode("utf-8", "replace"))

    def get(self, name: str) -> str | None:
        value = self.fields.get(name)
        return None if value is None else str(value)

    @property
    def advisories(self) -> tuple[str, ...]:
        """The published vulnerabilities that it fixes, one an `Advisory:` line."""
        return tuple(map(str, self.fields.get_all("Advisory", [])))

    @property
    def relies_on(self) -> tuple[tuple[str, ...], ...]:
        """Upstream symbols that the patch needs but does not touch.

        One symbol a `Relies-On:` line, written `package.module:Class.method`, or
        several with ` | ` between them, of which a release has one; words after them
        are a remark.
        """
        values = self.fields.get_all("Relies-On", [])
        symbols = (re.match(r"(\S+)((?: \| \S+)*)", value) for value in values)
        return tuple(tuple(match[0].split(" | ")) for match in symbols if match)


@dataclass(frozen=True)
class Hunk:
    """One hunk: 1-based start lines and (tag, line) pairs.

    The tag is one of CONTEXT, ADDED, REMOVED; a line keeps its line end, so that
    CRLF, a byte-order mark and a missing last newline survive.
    """

    source_start: int
    target_start: int
    lines: tuple[tuple[str, bytes], ...]

    @property
    def source(self) -> tuple[bytes, ...]:
        return tuple(line for tag, line in self.lines if tag != ADDED)

    @property
    def target(self) -> tuple[bytes, ...]:
        return tuple(line for tag, line in self.lines if tag != REMOVED)

    @property
    def first_source_index(self) -> int:
        """0-based index in the old file; diff writes line 0 for an empty range."""
        return self.source_start - 1 if self.source else self.source_start


@dataclass(frozen=True)
class FilePatch:
    path: str
    hunks: tuple[Hunk, ...]


@dataclass(frozen=True)
class Patch:
    name: str
    raw: bytes
    header: Header
    files: tuple[FilePatch, ...]

    def count(self, tag: str) -> int:
        return sum(change == tag for _, change, _ in self.changes)

    @property
    def changes(self) -> tuple[tuple[str, str, bytes], ...]:
        """Path, tag and text of every added or removed line: no context, no numbers."""
        return tuple(
            (file.path, tag, line)
            for file in self.files
            for hunk in file.hunks
            for tag, line in hunk.lines
            if tag in (ADDED, REMOVED)
        )


def parse_patch(name: str, raw: bytes) -> Patch:
    body = _BODY.search(raw)
    start = body.start() if body else len(raw)
    # latin-1 maps every byte to one character and back: content stays exact. Only
    # LF ends a line; str.splitlines would also split at a lone CR.
    *lines, unended = raw[start:].decode("latin-1").split("\n")
    if unended:
        raise ToolError(f"{name}: the last line has no line end; refresh the patch")
    try:
        parsed = PatchSet([f"{line}\n" for line in lines])
    except UnidiffParseError as error:
        raise ToolError(
            f"{name}: expected a unified diff, found {str(error).strip()!r}; "
            "refresh the patch with quilt"
        ) from error
    files = tuple(_file_patch(name, file) for file in parsed)
    if len({file.path for file in files}) < len(files):
        raise ToolError(f"{name}: a file occurs twice; refresh the patch")
    return Patch(name, raw, Header(raw[:start]), files)


def _file_patch(name: str, file: PatchedFile) -> FilePatch:
    source, target = file.source_file, file.target_file
    path = PurePosixPath(target[2:])
    inside = not path.is_absolute() and ".." not in path.parts
    if not file or not inside or (source[:2], target) != ("a/", f"b/{source[2:]}"):
        raise ToolError(
            f"{name}: expected hunks that change one text file of the tree, a/PATH to "
            f"b/PATH, found {source} to {target}; a new file belongs to files of ours"
        )
    hunks = tuple(
        Hunk(
            hunk.source_start,
            hunk.target_start,
            _exact(name, [(line.line_type, line.value) for line in hunk]),
        )
        for hunk in file
    )
    return FilePatch(str(path), hunks)


def _exact(name: str, lines: list[tuple[str, str]]) -> tuple[tuple[str, bytes], ...]:
    result: list[tuple[str, bytes]] = []
    for tag, value in lines:
        if tag == _NO_NEWLINE:
            last_tag, last = result[-1]
            result[-1] = (last_tag, last.removesuffix(b"\n"))
        elif tag in (CONTEXT, ADDED, REMOVED):
            result.append((tag, value.encode("latin-1")))
        else:
            raise ToolError(f"{name}: empty line after a hunk; refresh the patch")
    return tuple(result)
