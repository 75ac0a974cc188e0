"""Put a hook's lines at its place in another version of the module.

The place is known as syntax; here it becomes lines. Comments and blank lines between
the neighbours decide on which side of them the hook goes, as they do in the old file.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from balance_tools.errors import ToolError
from balance_tools.hooks.astdiff import Gap, Nodes, some
from balance_tools.hooks.hook import Hook
from balance_tools.text import split_lines


def _not_whole(why: str) -> ToolError:
    """The place exists as syntax but not between two lines."""
    return ToolError(f"{why}; upstream formats this code otherwise")


Lines = tuple[bytes, ...]
Chunk = tuple[Lines, Lines, Lines]
"""The hook's own lines, and the comments and blank lines before and after it."""


def insertion(
    hook: Hook, gap: Gap, base: bytes, patched: bytes, upstream: bytes
) -> tuple[int, Lines]:
    """Return what puts a hook into a gap of `upstream`: the line before it, and lines.

    The hook is one of those that turned `base` into `patched`.

    Raises:
        ToolError: the place shares its line with other code.
    """
    lines = split_lines(upstream)
    indent = _indent_change(hook.old, gap, split_lines(base), lines)
    ending = b"\r\n" if lines and lines[0].endswith(b"\r\n") else b"\n"
    chunk = _chunk(hook, split_lines(base), split_lines(patched))
    return _line_of(gap, chunk, lines), _shifted(chunk[0], indent, ending)


def with_insertions(upstream: bytes, insertions: Sequence[tuple[int, Lines]]) -> bytes:
    """Return `upstream` with the lines of some insertions."""
    lines, edits = split_lines(upstream), sorted(insertions, key=itemgetter(0))
    for start, new in reversed(edits):
        lines[start:start] = new
    return b"".join(lines)


def span(nodes: Nodes) -> tuple[int, int]:
    """Return the 0-based first line of the nodes and the line behind the last one.

    Raises:
        ToolError: the nodes have no line of their own.
    """
    starts, ends = [], []
    for node in nodes:
        for part in (node, *getattr(node, "decorator_list", ())):
            if not isinstance(getattr(part, "lineno", None), int):
                raise _not_whole(f"{type(part).__name__} has no line of its own")
            starts.append(part.lineno)
            ends.append(part.end_lineno or part.lineno)
    return min(starts) - 1, max(ends)


def _is_trivia(line: bytes) -> bool:
    text = line.strip()
    return not text or text.startswith(b"#")


def _around(gap: Gap, lines: list[bytes]) -> tuple[int, int]:
    """Return the lines of the gap: its nodes with the trivia above and below them."""
    if gap.before is not None:
        start = span(some(gap.before))[1]
    else:
        start = span(gap.inside or some(gap.after))[0]
        while start and _is_trivia(lines[start - 1]):
            start -= 1
    if gap.after is not None:
        end = span(some(gap.after))[0]
    else:
        end = span(gap.inside or some(gap.before))[1]
        while end < len(lines) and _is_trivia(lines[end]):
            end += 1
    if start > end:
        raise _not_whole(f"line {end + 1} holds both neighbours of the hook")
    return start, end


def _chunk(hook: Hook, base: list[bytes], patched: list[bytes]) -> Chunk:
    first, last = _around(hook.new, patched)
    region = patched[first:last]
    start, end = _around(hook.old, base)
    trivia = base[start:end]
    extra = len(region) - len(trivia)
    splits = [
        k
        for k in range(len(trivia) + 1)
        if region[:k] == trivia[:k] and region[k + extra :] == trivia[k:]
    ]
    # A chunk that starts with the hook, not with a blank line, reads as it was written.
    splits.sort(key=lambda k: (not region[k].strip(), k))
    if not splits:
        own_first, own_last = span(hook.new.inside)
        return tuple(patched[own_first:own_last]), (), tuple(trivia)
    k = splits[0]
    return tuple(region[k : k + extra]), tuple(trivia[:k]), tuple(trivia[k:])


def _line_of(gap: Gap, chunk: Chunk, lines: list[bytes]) -> int:
    """Return the line before which the chunk goes."""
    start, end = _around(gap, lines)
    here, (_, before, after) = tuple(lines[start:end]), chunk
    _check_line_is_whole(gap, lines)
    if not before or (gap.after is None and here[: len(before)] != before):
        return start
    if here[: len(before)] == before:
        return start + len(before)
    if not after:
        return end
    # The comment right above the next statement stays with it.
    while end > start and lines[end - 1].strip():
        end -= 1
    return end


def _check_line_is_whole(gap: Gap, lines: list[bytes]) -> None:
    if gap.before is not None:
        last = span(some(gap.before))[1]
        column = getattr(gap.before, "end_col_offset", 0) or 0
        rest = _without_mark(lines[last - 1])[column:].split(b"#")[0].strip()
        if rest.strip(b",;"):
            raise _not_whole(f"line {last} goes on with {rest.decode()!r}")
    if gap.after is not None:
        first = span(some(gap.after))[0]
        column = 0
        if not getattr(gap.after, "decorator_list", ()):
            column = getattr(gap.after, "col_offset", 0)
        if _without_mark(lines[first])[:column].strip():
            raise _not_whole(f"line {first + 1} starts with other code")


def _without_mark(line: bytes) -> bytes:
    """Return a line without a byte-order mark, which the columns do not count."""
    return line.removeprefix(b"\xef\xbb\xbf")


def _indent_change(
    old: Gap, new: Gap, base: list[bytes], upstream: list[bytes]
) -> tuple[bytes, bytes]:
    """Return the old and the new indentation of the list that holds the hook."""
    for was, now in ((old.before, new.before), (old.after, new.after)):
        if was is not None and now is not None:
            lines = base[span((was,))[0]], upstream[span((now,))[0]]
            old_indent, new_indent = (
                x[: len(x) - len(x.lstrip(b" \t"))] for x in lines
            )
            return old_indent, new_indent
    raise _not_whole("the block has no statement to align the hook with")


def _shifted(
    lines: tuple[bytes, ...], indent: tuple[bytes, bytes], ending: bytes
) -> tuple[bytes, ...]:
    old, new = indent
    return tuple(
        (new + line.removeprefix(old) if line.strip() else line).rstrip(b"\r\n")
        + ending
        for line in lines
    )
