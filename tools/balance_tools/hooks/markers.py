"""Conflict files: both sides of what has no place, and why it has none."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from balance_tools.hooks.model import Labels
from balance_tools.hooks.proof import Hook
from balance_tools.hooks.scopes import find_scope
from balance_tools.series.patchfile import FilePatch
from balance_tools.text import split_lines

OURS, BASE, SPLIT, THEIRS = b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>"


def has_markers(content: bytes) -> bool:
    """Whether a conflict is left in a file."""
    starts = (OURS + b" ", THEIRS + b" ")
    return any(line.startswith(starts) for line in content.splitlines())


def mark_hooks(
    upstream: bytes,
    file: FilePatch,
    hooks: Sequence[tuple[Hook, str]],
    labels: Labels,
) -> bytes:
    """Return `upstream` with a conflict block for each hook that has no place.

    A block holds the hunk of the patch with the hook. It stands at the head of the
    function or class that the hook belongs to, or at the end of the file if that is
    gone; the text beside each hook is the sentence that says why.
    """
    lines = split_lines(upstream)
    if lines and not lines[-1].endswith(b"\n"):
        lines[-1] += b"\n"
    blocks: list[tuple[int, list[bytes]]] = []
    for hook, sentence in hooks:
        hunks = [h for h in file.hunks if h.target_start <= max(hook.line, 1)]
        hunk = (hunks or file.hunks)[-1]
        block = [
            OURS + f" {labels.new}: {sentence}\n".encode(),
            BASE + f" {labels.old}\n".encode(),
            *(line.rstrip(b"\r\n") + b"\n" for line in hunk.source),
            SPLIT + b"\n",
            *(line.rstrip(b"\r\n") + b"\n" for line in hunk.target),
            THEIRS + f" {labels.patch}\n".encode(),
        ]
        blocks.append((_head_of(hook.anchor.scope, upstream, len(lines)), block))
    for at, block in sorted(blocks, key=lambda item: item[0], reverse=True):
        lines[at:at] = block
    return b"".join(lines)


def _head_of(scope: str, upstream: bytes, end: int) -> int:
    try:
        node = find_scope(ast.parse(upstream), scope)
    except (SyntaxError, ValueError):
        return end
    body = getattr(node, "body", None)
    return int(body[0].lineno) - 1 if scope and body else end
