"""Decide what becomes of one file of a patch on the new release.

Each hook is put at its place, and the syntax tree proves the outcome; else a person
decides, in a file with a conflict block for each hook without a place.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.hooks.astdiff import Gap, ast_differences
from balance_tools.hooks.elements import find_scope
from balance_tools.hooks.hook import (
    Hook,
    also_upstream,
    dumps,
    first_line,
    hooks_between,
)
from balance_tools.hooks.locate import Place, already_there, locate
from balance_tools.hooks.model import FileVerdict, HookResult, Status, worst
from balance_tools.hooks.placement import Lines, insertion, with_insertions
from balance_tools.series.patchfile import FilePatch, Hunk
from balance_tools.text import parse_module, split_lines

OURS, BASE, SPLIT, THEIRS = b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>"


@dataclass(frozen=True)
class Sides:
    """Every version of one file that a decision needs."""

    base: bytes
    """Old upstream with the patches before this one."""
    patched: bytes
    """The same with this patch."""
    upstream: bytes
    """New upstream with the patches before this one."""
    new: str
    """What new upstream is called, old upstream, and the patch."""
    old: str
    patch: str


def decide(file: FilePatch, sides: Sides) -> FileVerdict:
    """Return what to do with one file of a patch."""
    try:
        hooks = _whole_hooks(file.path, sides)
        return _place(file, sides, hooks, parse_module(sides.upstream, file.path))
    except ToolError as error:
        said, upstream = str(error), sides.upstream
        content = _mark(upstream, [(hunk, "", said) for hunk in file.hunks], sides)
        notes = (said,)
        return FileVerdict(file.path, content, upstream, Status.CONFLICT, notes=notes)


def _whole_hooks(path: str, sides: Sides) -> list[Hook]:
    """Return the hooks of a patch.

    Raises:
        ToolError: it does more than add code.
    """
    base, patched = sides.base, sides.patched
    hooks = hooks_between(base, patched, path)
    own = [insertion(hook, hook.old, base, patched, base) for hook in hooks]
    if with_insertions(base, own) != patched:
        raise ToolError(
            f"{path}: expected hooks that only add code, found comments or blank lines "
            "away from it; put them beside the code"
        )
    return hooks


def _place(
    file: FilePatch, sides: Sides, hooks: Sequence[Hook], tree: ast.Module
) -> FileVerdict:
    path, upstream = file.path, sides.upstream
    there = [already_there(hook, tree) for hook in hooks]
    if all(there):
        status = Status.ALREADY_UPSTREAM
        found = [_result(path, hook, status, "found at its place") for hook in hooks]
        return FileVerdict(path, upstream, upstream, status, tuple(found))
    lines: list[tuple[int, Lines]] = []
    placed: list[tuple[Hook, Place]] = []
    refused: list[tuple[Hunk, str, str]] = []
    results: list[HookResult] = []
    for hook, is_there in zip(hooks, there, strict=True):
        place = _place_of(hook, is_there, sides, tree)
        try:
            if isinstance(place, str):
                raise ToolError(place)
            sources = (sides.base, sides.patched, upstream)
            lines.append(insertion(hook, place.gap, *sources))
            placed.append((hook, place))
        except ToolError as error:
            gone = find_scope(tree, hook.scope) is None
            status = Status.TARGET_DELETED if gone else Status.CONFLICT
            hunks = [h for h in file.hunks if h.target_start <= max(hook.line, 1)]
            hunk = (hunks or file.hunks)[-1]
            refused.append((hunk, hook.scope, str(error)))
            results.append(_result(path, hook, status, str(error)))
    content = with_insertions(upstream, lines)
    at = _proven(placed, tree, content, path)
    good = [
        _result(path, hook, Status.CONTEXT_ONLY, "; ".join(place.notes), at[place.gap])
        for hook, place in placed
    ]
    marked = _mark(content, refused, sides)
    status = worst(result.status for result in (*good, *results))
    return FileVerdict(path, marked, content, status, (*good, *results))


def _place_of(
    hook: Hook, is_there: bool, sides: Sides, tree: ast.Module
) -> Place | str:
    """Return the place of a hook, or why a person must decide."""
    if is_there:
        return f"{sides.new} has exactly this code at this place; drop it"
    if shared := also_upstream(hook, sides.base, sides.upstream):
        return (
            f"{sides.new} itself uses {', '.join(shared)}, which the hook brings: "
            "perhaps it was merged in other words"
        )
    return locate(hook, tree)


def _result(
    path: str, hook: Hook, status: Status, note: str, line: int = 0
) -> HookResult:
    return HookResult(path, hook.scope, hook.line, line, status, note)


def _proven(
    placed: Sequence[tuple[Hook, Place]], tree: ast.Module, content: bytes, path: str
) -> dict[Gap, int]:
    """Return the line of each gap in `content`, which is `tree` with the hooks.

    Raises:
        ToolError: the hooks are not what is new in it, each in its gap.
    """
    found = ast_differences(tree, parse_module(content, path))
    new = {one.old: dumps(one.new.inside) for one in found}
    if new != {place.gap: dumps(hook.new.inside) for hook, place in placed}:
        raise ToolError(
            f"{path}: expected {len(placed)} hooks at their places, found other "
            "changes; upstream formats this code otherwise"
        )
    return {one.old: first_line(one.new) for one in found}


def _mark(
    content: bytes, blocks: Sequence[tuple[Hunk, str, str]], sides: Sides
) -> bytes:
    """Put conflict blocks into a file: a hunk, the scope it belongs to, and why.

    A block stands at the head of its function or class, or at the end if that is gone,
    or the file is not Python.
    """
    lines = split_lines(content)
    if blocks and lines and not lines[-1].endswith(b"\n"):
        lines[-1] += b"\n"
    marked: list[tuple[int, list[bytes]]] = []
    for hunk, scope, sentence in blocks:
        block = [
            OURS + f" {sides.new}: {sentence}\n".encode(),
            BASE + f" {sides.old}\n".encode(),
            *(line.rstrip(b"\r\n") + b"\n" for line in hunk.source),
            SPLIT + b"\n",
            *(line.rstrip(b"\r\n") + b"\n" for line in hunk.target),
            THEIRS + f" {sides.patch}\n".encode(),
        ]
        body = (
            getattr(find_scope(ast.parse(content), scope), "body", ()) if scope else ()
        )
        marked.append((int(body[0].lineno) - 1 if body else len(lines), block))
    for at, block in sorted(marked, key=lambda item: item[0], reverse=True):
        lines[at:at] = block
    return b"".join(lines)


def check_edit(file: Path) -> None:
    """Check a file that a person edited.

    Raises:
        ToolError: a conflict is left, or it is not Python.
    """
    content = file.read_bytes()
    starts = (OURS + b" ", THEIRS + b" ")
    if any(line.startswith(starts) for line in content.splitlines()):
        raise ToolError(
            f"{file}: a conflict is left; edit the file until no <<<<<<< remains, "
            "then run tools/rebase.sh continue"
        )
    parse_module(content, str(file))
