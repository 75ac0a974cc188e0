"""Decide what becomes of one file of a patch on the new release.

Git's merge is taken if the syntax proves it; else the hooks are put at their places by
syntax; else a person decides, in a file with a conflict block for each hook.
"""

from __future__ import annotations

import ast
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.hooks.elements import find_scope
from balance_tools.hooks.locate import Place, locate
from balance_tools.hooks.model import FileVerdict, HookResult, Status, worst
from balance_tools.hooks.placement import insert_hooks
from balance_tools.hooks.proof import (
    Hook,
    already_there,
    also_upstream,
    check_placement,
    placement_of,
)
from balance_tools.run import capture
from balance_tools.series.patchfile import FilePatch
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

    def merge(self) -> tuple[bytes, bool]:
        """Let git merge the two changes of `base`; say if that is clean, too."""
        sides = {"new": self.upstream, "old": self.base, "patch": self.patched}
        with tempfile.TemporaryDirectory() as name:
            command = ["git", "merge-file", "-p", "--diff3"]
            for side, content in sides.items():
                (Path(name) / side).write_bytes(content)
                command += ["-L", getattr(self, side)]
            run = capture([*command, *sides], cwd=Path(name))
        if run.status > 127:  # else the number of conflicts
            raise ToolError(f"git merge-file: expected it to merge, found {run.tail}")
        return run.output, run.status == 0


def decide(file: FilePatch, sides: Sides) -> FileVerdict:
    """Return what to do with one file of a patch."""
    merged, clean = sides.merge()
    try:
        return _module(file, sides, merged, clean)
    except ToolError as error:
        content = sides.upstream if clean else merged
        status, notes = Status.CONFLICT, (str(error),)
        return FileVerdict(file.path, content, sides.upstream, status, notes=notes)


def _module(file: FilePatch, sides: Sides, merged: bytes, clean: bool) -> FileVerdict:
    path, upstream, new = file.path, sides.upstream, sides.new
    hooks = placement_of(sides.base, sides.patched, path)
    tree = parse_module(upstream, path)
    there = [already_there(hook, tree) for hook in hooks]
    if hooks and all(there) and merged == upstream and clean:
        status = Status.ALREADY_UPSTREAM
        found = [_result(path, hook, status, "found at its place") for hook in hooks]
        return FileVerdict(path, upstream, upstream, status, tuple(found))
    placed: list[tuple[Hook, Place]] = []
    refused: list[tuple[Hook, str]] = []
    bad: list[HookResult] = []
    for hook, is_there in zip(hooks, there, strict=True):
        place = locate(hook.anchor, tree)
        shared = also_upstream(hook, sides.base, upstream)
        if is_there:
            place = f"{new} has exactly this code at this place; drop it"
        elif shared:
            place = (
                f"{new} itself uses {', '.join(shared)}, which the hook brings: "
                "perhaps it was merged in other words"
            )
        if isinstance(place, Place):
            placed.append((hook, place))
        else:
            gone = find_scope(tree, hook.anchor.scope) is None
            status = Status.TARGET_DELETED if gone else Status.CONFLICT
            refused.append((hook, place))
            bad.append(_result(path, hook, status, place))
    content, how = merged, "git"
    if refused or not clean or _problems(hooks, upstream, content, path):
        content = insert_hooks(placed, sides.base, sides.patched, upstream)
        how = "syntax"
        only = [hook for hook, _ in placed]
        if problems := _problems(only, upstream, content, path):
            raise ToolError(problems[0])
    lines = [hook.line for hook in placement_of(upstream, content, path)]
    lines = lines if len(lines) == len(placed) else [0] * len(placed)
    good = [
        _result(path, hook, Status.CONTEXT_ONLY, "; ".join(place.notes), how, line)
        for (hook, place), line in zip(placed, lines, strict=True)
    ]
    marked = _mark(content, file, refused, sides) if refused else content
    status = worst([result.status for result in (*good, *bad)])
    return FileVerdict(path, marked, content, status, (*good, *bad))


def _result(
    path: str, hook: Hook, status: Status, note: str, how: str = "", line: int = 0
) -> HookResult:
    return HookResult(path, hook.anchor.scope, hook.line, line, how, status, note)


def _problems(
    hooks: list[Hook], upstream: bytes, content: bytes, path: str
) -> list[str]:
    try:
        return check_placement(hooks, upstream, content, path)
    except ToolError as error:  # git's merge is not Python
        return [str(error)]


def _mark(
    content: bytes, file: FilePatch, hooks: Sequence[tuple[Hook, str]], sides: Sides
) -> bytes:
    """Put a conflict block into a file for each hook that has no place, and why.

    A block holds the hunk of the patch with the hook. It stands at the head of the
    function or class that the hook belongs to, or at the end if that is gone.
    """
    lines, tree = split_lines(content), ast.parse(content)
    if lines and not lines[-1].endswith(b"\n"):
        lines[-1] += b"\n"
    blocks: list[tuple[int, list[bytes]]] = []
    for hook, sentence in hooks:
        hunks = [h for h in file.hunks if h.target_start <= max(hook.line, 1)]
        hunk, scope = (hunks or file.hunks)[-1], hook.anchor.scope
        block = [
            OURS + f" {sides.new}: {sentence}\n".encode(),
            BASE + f" {sides.old}\n".encode(),
            *(line.rstrip(b"\r\n") + b"\n" for line in hunk.source),
            SPLIT + b"\n",
            *(line.rstrip(b"\r\n") + b"\n" for line in hunk.target),
            THEIRS + f" {sides.patch}\n".encode(),
        ]
        body = getattr(find_scope(tree, scope), "body", None)
        head = int(body[0].lineno) - 1 if scope and body else len(lines)
        blocks.append((head, block))
    for at, block in sorted(blocks, key=lambda item: item[0], reverse=True):
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
