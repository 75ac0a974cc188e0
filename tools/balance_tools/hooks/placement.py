"""Decide what becomes of one file of a patch on the new release.

Each hook is put at its place, and the syntax tree proves the outcome; else it is left
out, with the reason, and a person decides.

The place is known as syntax; here it becomes lines. Comments and blank lines between
the neighbours decide on which side of them the hook goes, as they do in the old file.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from operator import itemgetter

from balance_tools.errors import ToolError
from balance_tools.hooks.astdiff import Gap, ast_differences
from balance_tools.hooks.elements import find_scope
from balance_tools.hooks.hook import (
    Hook,
    Place,
    already_there,
    also_upstream,
    dumps,
    first_line,
    hooks_between,
    locate,
)
from balance_tools.hooks.model import FileVerdict, HookResult, PatchStatus, worst
from balance_tools.text import parse_module, split_lines

Lines = tuple[bytes, ...]
Chunk = tuple[Lines, Lines, Lines]
"""The hook's own lines, and the comments and blank lines before and after it."""


def decide(
    path: str, base: bytes, patched: bytes, upstream: bytes | None, release: str
) -> FileVerdict:
    """Return what becomes of one file.

    `base` is old upstream with the patches before this one, `patched` with this one,
    too; `upstream` is the new one with those before, None if the file is gone.
    """
    if upstream is None:
        note = f"{path} is gone in {release}"
        return FileVerdict(path, None, PatchStatus.TARGET_DELETED, notes=(note,))
    try:
        hooks = _whole_hooks(path, base, patched)
        tree = parse_module(upstream, path)
        there = [already_there(hook, tree) for hook in hooks]
        if all(there):
            status, note = PatchStatus.ALREADY_UPSTREAM, "found at its place"
            same = tuple(_result(path, hook, status, note) for hook in hooks)
            return FileVerdict(path, upstream, status, same)
        lines: list[tuple[int, Lines]] = []
        placed: list[tuple[Hook, Place]] = []
        refused: list[HookResult] = []
        for hook, is_there in zip(hooks, there, strict=True):
            try:
                if is_there:
                    raise ToolError(
                        f"{release} has exactly this code at this place; drop it"
                    )
                if shared := also_upstream(hook, base, upstream):
                    raise ToolError(
                        f"{release} itself uses {', '.join(shared)}, which the hook "
                        "brings: perhaps it was merged in other words"
                    )
                place = locate(hook, tree)
                lines.append(insertion(hook, place.gap, base, patched, upstream))
                placed.append((hook, place))
            except ToolError as error:
                gone = find_scope(tree, hook.scope) is None
                status = PatchStatus.TARGET_DELETED if gone else PatchStatus.CONFLICT
                refused.append(_result(path, hook, status, str(error)))
        content = with_insertions(upstream, lines)
        at = _proven(placed, tree, content, path)
    except ToolError as error:
        notes = (str(error),)
        return FileVerdict(path, upstream, PatchStatus.CONFLICT, notes=notes)
    placed_results = [
        _result(
            path, hook, PatchStatus.CONTEXT_ONLY, "; ".join(place.notes), at[place.gap]
        )
        for hook, place in placed
    ]
    results = (*placed_results, *refused)
    return FileVerdict(path, content, worst(r.status for r in results), results)


def _whole_hooks(path: str, base: bytes, patched: bytes) -> list[Hook]:
    hooks = hooks_between(base, patched, path)
    insertions = [insertion(hook, hook.old, base, patched, base) for hook in hooks]
    if with_insertions(base, insertions) != patched:
        raise ToolError(
            f"{path}: expected hooks that only add code, found comments or blank lines "
            "away from it; put them beside the code"
        )
    return hooks


def _result(
    path: str, hook: Hook, status: PatchStatus, note: str, line: int = 0
) -> HookResult:
    return HookResult(path, hook.scope, hook.line, line, status, note)


def _proven(
    placed: Sequence[tuple[Hook, Place]], tree: ast.Module, content: bytes, path: str
) -> dict[Gap, int]:
    """Return the line of each gap in `content`, which is `tree` with the hooks."""
    differences = ast_differences(tree, parse_module(content, path))
    new = {difference.old: dumps(difference.new.inside) for difference in differences}
    if new != {place.gap: hook.code for hook, place in placed}:
        raise ToolError(
            f"{path}: expected {len(placed)} hooks at their places, found other "
            "changes; upstream formats this code otherwise"
        )
    return {difference.old: first_line(difference.new) for difference in differences}


def insertion(
    hook: Hook, gap: Gap, base: bytes, patched: bytes, upstream: bytes
) -> tuple[int, Lines]:
    """Return what puts a hook into a gap of `upstream`: the line before it, and lines.

    The hook is one of those that turned `base` into `patched`.
    """
    lines = split_lines(upstream)
    indent = _indent_change(hook.old, gap, split_lines(base), lines)
    ending = b"\r\n" if lines and lines[0].endswith(b"\r\n") else b"\n"
    chunk = _chunk(hook, split_lines(base), split_lines(patched))
    return _line_of(gap, chunk, lines), _shifted(chunk[0], indent, ending)


def with_insertions(upstream: bytes, insertions: Sequence[tuple[int, Lines]]) -> bytes:
    lines, edits = split_lines(upstream), sorted(insertions, key=itemgetter(0))
    for start, new in reversed(edits):
        lines[start:start] = new
    return b"".join(lines)


def span(nodes: Sequence[ast.AST | None]) -> tuple[int, int]:
    """Return the 0-based first line of the nodes and the line behind the last one."""
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
        start = span((gap.before,))[1]
    else:
        start = span(gap.inside or (gap.after,))[0]
        while start and _is_trivia(lines[start - 1]):
            start -= 1
    if gap.after is not None:
        end = span((gap.after,))[0]
    else:
        end = span(gap.inside or (gap.before,))[1]
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
    # A chunk that starts with the hook, and not with a blank line, is preferred.
    splits.sort(key=lambda k: (not region[k].strip(), k))
    if not splits:
        own_first, own_last = span(hook.new.inside)
        return tuple(patched[own_first:own_last]), (), tuple(trivia)
    k = splits[0]
    return tuple(region[k : k + extra]), tuple(trivia[:k]), tuple(trivia[k:])


def _line_of(gap: Gap, chunk: Chunk, lines: list[bytes]) -> int:
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
        last = span((gap.before,))[1]
        column = getattr(gap.before, "end_col_offset", 0) or 0
        code = _without_mark(lines[last - 1])[column:].split(b"#")[0].strip()
        if code.strip(b",;"):
            raise _not_whole(f"line {last} goes on with {code.decode()!r}")
    if gap.after is not None:
        first = span((gap.after,))[0]
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


def _not_whole(reason: str) -> ToolError:
    return ToolError(f"{reason}; upstream formats this code otherwise")
