"""One patch file: its DEP-3 header and its hunks, byte for byte."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath

from unidiff.errors import UnidiffParseError
from unidiff.patch import PatchedFile, PatchSet

from balance_tools.errors import ToolError

CONTEXT, ADDED, REMOVED = " ", "+", "-"

# Where quilt, too, ends the header (`patch_header` in its patchfns).
_BODY = re.compile(rb"^(?:(?:---|\*\*\*|Index:)[ \t][^ \t]|diff -)", re.MULTILINE)
_FIELD = re.compile(r"([A-Za-z][A-Za-z0-9-]*):[ \t]*(.*)")
_NO_NEWLINE = "\\"


@dataclass(frozen=True)
class Header:
    """The DEP-3 header: raw bytes, and its fields by lower-case name."""

    raw: bytes
    fields: Mapping[str, tuple[str, ...]]

    def get(self, name: str) -> str | None:
        """Return the first value of a field, or None where the field is missing."""
        values = self.fields.get(name.lower())
        return values[0] if values else None

    def get_all(self, name: str) -> tuple[str, ...]:
        """Return every value of a repeated field, in order."""
        return self.fields.get(name.lower(), ())

    @property
    def relies_on(self) -> tuple[tuple[str, ...], ...]:
        """Upstream symbols that the patch needs but does not touch.

        One symbol a `Relies-On:` line, written `package.module:Class.method`, or
        several with ` | ` between them, of which a release has one; words after them
        are a remark.
        """
        found = []
        for value in self.get_all("Relies-On"):
            first, *rest = value.split() or [""]
            names = [first]
            while len(rest) > 1 and rest[0] == "|":
                names.append(rest[1])
                rest = rest[2:]
            if first:
                found.append(tuple(names))
        return tuple(found)


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
        """The lines that the hunk expects to find."""
        return tuple(line for tag, line in self.lines if tag != ADDED)

    @property
    def target(self) -> tuple[bytes, ...]:
        """The lines that the hunk leaves behind."""
        return tuple(line for tag, line in self.lines if tag != REMOVED)

    @property
    def first_source_index(self) -> int:
        """0-based index in the old file; diff writes line 0 for an empty range."""
        return self.source_start - 1 if self.source else self.source_start


@dataclass(frozen=True)
class FilePatch:
    """What one patch does to one file; `path` is relative to the tree's root."""

    path: str
    creates: bool
    deletes: bool
    hunks: tuple[Hunk, ...]

    def count(self, tag: str) -> int:
        """Return the number of lines with this tag."""
        return sum(t == tag for hunk in self.hunks for t, _ in hunk.lines)


@dataclass(frozen=True)
class Patch:
    """A patch of a series: name, bytes, header and what it does to which files."""

    name: str
    raw: bytes
    header: Header
    files: tuple[FilePatch, ...]

    def count(self, tag: str) -> int:
        """Return the number of lines with this tag in all files."""
        return sum(file.count(tag) for file in self.files)

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


def split_header(raw: bytes) -> tuple[bytes, bytes]:
    """Split a patch into header and body where quilt does."""
    match = _BODY.search(raw)
    return (raw[: match.start()], raw[match.start() :]) if match else (raw, b"")


def parse_header(raw: bytes) -> Header:
    """Parse the RFC 822-like fields; a line that starts with a blank continues."""
    fields: dict[str, list[str]] = {}
    current: list[str] | None = None
    for line in raw.decode("utf-8", "replace").splitlines():
        if line[:1] in (" ", "\t") and current is not None:
            current[-1] = f"{current[-1]}\n{line.strip()}".strip()
        elif match := _FIELD.fullmatch(line):
            current = fields.setdefault(match[1].lower(), [])
            current.append(match[2].strip())
        else:
            current = None
    return Header(raw, {name: tuple(values) for name, values in fields.items()})


def parse_patch(name: str, raw: bytes) -> Patch:
    """Parse one patch file.

    Raises:
        ToolError: the diff cannot be parsed, is binary, renames a file, names a path
            outside of the tree, or names one file twice.
    """
    header, body = split_header(raw)
    # latin-1 maps every byte to one character and back: content stays exact. Only
    # LF ends a line; str.splitlines would also split at a lone CR.
    *lines, rest = body.decode("latin-1").split("\n")
    if rest:
        raise ToolError(f"{name}: the last line has no line end; refresh the patch")
    try:
        parsed = PatchSet([f"{line}\n" for line in lines])
    except UnidiffParseError as error:
        raise ToolError(
            f"{name}: expected a unified diff, found {str(error).strip()!r}; "
            "refresh the patch with quilt"
        ) from error
    files = tuple(_file_patch(name, file) for file in parsed)
    paths = [file.path for file in files]
    for path in paths:
        if paths.count(path) > 1:
            raise ToolError(f"{name}: {path} occurs twice; refresh the patch")
    return Patch(name, raw, parse_header(header), files)


def _file_patch(name: str, file: PatchedFile) -> FilePatch:
    source, target = file.source_file, file.target_file
    creates, deletes = source == "/dev/null", target == "/dev/null"
    if file.is_binary_file:
        raise ToolError(f"{name}: {target} is a binary diff; patch text files only")
    for path, prefix in ((source, "a/"), (target, "b/")):
        inside = PurePosixPath(path)
        if path != "/dev/null" and (
            not path.startswith(prefix) or ".." in inside.parts or path.endswith("/")
        ):
            raise ToolError(
                f"{name}: expected a path that starts with {prefix} and stays in the "
                f"tree, found {path!r}; refresh the patch with quilt"
            )
    if not file:
        raise ToolError(f"{name}: {target} has no hunks; refresh the patch with quilt")
    if not creates and not deletes and source[2:] != target[2:]:
        raise ToolError(
            f"{name}: {source} becomes {target}; a rename must be a deletion and an "
            "addition"
        )
    hunks = tuple(
        Hunk(
            hunk.source_start,
            hunk.target_start,
            _exact(name, [(line.line_type, line.value) for line in hunk]),
        )
        for hunk in file
    )
    return FilePatch((target if creates else source)[2:], creates, deletes, hunks)


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
