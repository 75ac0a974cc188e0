"""Conflict files: both sides, what stood there before, and what upstream changed."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from balance_tools.hooks.elements import element
from balance_tools.hooks.model import Labels
from balance_tools.hooks.placement import Hook
from balance_tools.hooks.scopes import find_scope
from balance_tools.text import split_lines

OURS, BASE, SPLIT, THEIRS = b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>"
CONTEXT_SHOWN = 2  # lines of old context on each side of a hook


def has_markers(content: bytes) -> bool:
    """Whether a conflict is left in a file."""
    lines = content.splitlines()
    starts = any(line.startswith(OURS + b" ") for line in lines)
    return starts or any(line.startswith(THEIRS + b" ") for line in lines)


def label_conflicts(content: bytes, labels: Labels, sentence: str) -> bytes:
    """Name the sides of the conflicts that git wrote."""
    named = {
        OURS: f"{labels.new}: {sentence}",
        BASE: labels.old,
        THEIRS: labels.patch,
    }
    lines = split_lines(content)
    for number, line in enumerate(lines):
        marker = line[:7]
        if marker in named and line[7:8] == b" ":
            lines[number] = marker + b" " + named[marker].encode() + b"\n"
    return b"".join(lines)


def mark_hooks(
    upstream: bytes,
    base: bytes,
    patched: bytes,
    hooks: Sequence[tuple[Hook, str]],
    labels: Labels,
) -> bytes:
    """Return `upstream` with a conflict block for each hook that has no place.

    A block stands at the head of the function or class that the hook belongs to, or at
    the end of the file if that is gone; the text beside each hook is the sentence that
    says why.
    """
    lines = split_lines(upstream)
    if lines and not lines[-1].endswith(b"\n"):
        lines[-1] += b"\n"
    blocks: list[tuple[int, list[bytes]]] = []
    for hook, sentence in hooks:
        at = _head_of(hook.anchor.scope, upstream, len(lines))
        blocks.append((at, _block(hook, base, patched, labels, sentence)))
    for at, block in sorted(blocks, key=lambda item: item[0], reverse=True):
        lines[at:at] = block
    return b"".join(lines)


def _head_of(scope: str, upstream: bytes, end: int) -> int:
    try:
        node = find_scope(ast.parse(upstream), scope)
    except (SyntaxError, ValueError):
        return end
    body = getattr(node, "body", None)
    if not scope or not body:
        return end
    return int(body[0].lineno) - 1


def _block(
    hook: Hook, base: bytes, patched: bytes, labels: Labels, sentence: str
) -> list[bytes]:
    before = _lines_around(base, _old_lines(hook))
    after = _lines_around(patched, _new_lines(hook))
    return [
        OURS + f" {labels.new}: {sentence}\n".encode(),
        BASE + f" {labels.old}\n".encode(),
        *before,
        SPLIT + b"\n",
        *after,
        THEIRS + f" {labels.patch}\n".encode(),
    ]


def _old_lines(hook: Hook) -> tuple[int, int]:
    """Return first and last line (1-based) of what the hook stood between."""
    ends = [
        getattr(n, "end_lineno", 0) for n in (hook.old.before, *hook.old.inside) if n
    ]
    starts = [getattr(n, "lineno", 0) for n in (*hook.old.inside, hook.old.after) if n]
    first = max(ends, default=starts[0] - 1 if starts else 0)
    return min(first, starts[0] if starts else first), first


def _new_lines(hook: Hook) -> tuple[int, int]:
    if not hook.new.width:
        return _old_lines(hook)
    nodes = hook.new.inside
    return (
        min(int(getattr(n, "lineno", 0)) for n in nodes),
        max(int(getattr(n, "end_lineno", 0) or 0) for n in nodes),
    )


def _lines_around(source: bytes, where: tuple[int, int]) -> list[bytes]:
    lines = split_lines(source)
    first = max(0, where[0] - 1 - CONTEXT_SHOWN)
    shown = lines[first : where[1] + CONTEXT_SHOWN]
    return [line.rstrip(b"\r\n") + b"\n" for line in shown]


def what_changed(scope: str, old: ast.AST, new: ast.AST | None) -> str:
    """Say in a clause what upstream did to a function between two releases."""
    name = scope or "the module"
    before = find_scope(old, scope)
    after = find_scope(new, scope) if new is not None else None
    if before is None or after is None:
        return f"{name} is gone"
    gone = _texts(before) - _texts(after)
    come = _texts(after) - _texts(before)
    if not gone and not come:
        return f"{name} has the same statements in another order or block"
    return f"{name} lost {len(gone)} and gained {len(come)} statements"


def _texts(node: ast.AST) -> set[str]:
    return {element(n).text for n in ast.walk(node) if isinstance(n, ast.stmt)}
