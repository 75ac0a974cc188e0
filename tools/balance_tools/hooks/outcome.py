"""Decide what becomes of one file of a patch on the new release.

Git's merge is taken if the syntax proves it; else the hooks are put at their places by
syntax; else a person decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.hooks.locate import NoPlace, Place, locate
from balance_tools.hooks.markers import has_markers, mark_hooks
from balance_tools.hooks.model import FileVerdict, HookResult, Labels, Status, worst
from balance_tools.hooks.placement import NotWholeLinesError, insert_hooks
from balance_tools.hooks.proof import (
    Hook,
    already_there,
    also_upstream,
    check_placement,
    placement_of,
)
from balance_tools.hooks.scopes import find_scope
from balance_tools.series.patchfile import FilePatch
from balance_tools.text import parse_module


@dataclass(frozen=True)
class Sides:
    """Every version of one file that a decision needs."""

    base: bytes
    """Old upstream with the patches before this one."""
    patched: bytes
    """The same with this patch."""
    upstream: bytes | None
    """New upstream with the patches before this one; None if it is gone."""
    merged: bytes | None
    """What git made of it; None if deleted."""
    clean: bool
    """Whether git merged without a conflict."""
    link: str | None
    """Where the path points to if it is a symbolic link in new upstream."""
    labels: Labels
    """Names of the sides, for conflict files."""


def decide(file: FilePatch, sides: Sides) -> FileVerdict:
    """Return what to do with one file of a patch."""
    if sides.link is not None:
        note = f"{file.path} is a symbolic link to {sides.link} in {sides.labels.new}"
        return _not_placed(file, sides, Status.TARGET_MOVED, note)
    try:
        return _module(file, sides)
    except (ToolError, NotWholeLinesError) as error:
        return _not_placed(file, sides, Status.CONFLICT, str(error))


def _not_placed(
    file: FilePatch, sides: Sides, status: Status, note: str
) -> FileVerdict:
    conflict = sides.merged is not None and not sides.clean
    content = sides.merged if conflict else sides.upstream
    return FileVerdict(file.path, content, sides.upstream, status, notes=(note,))


def _module(file: FilePatch, sides: Sides) -> FileVerdict:
    path, new = file.path, sides.labels.new
    hooks = placement_of(sides.base, sides.patched, path)
    if sides.upstream is None:
        note = f"{path} is gone in {new}"
        return FileVerdict(path, None, None, Status.TARGET_DELETED, notes=(note,))
    tree = parse_module(sides.upstream, path)
    there = [already_there(hook, tree) for hook in hooks]
    if hooks and all(there) and sides.merged == sides.upstream and sides.clean:
        status = Status.ALREADY_UPSTREAM
        found = [_result(path, hook, status, "found at its place") for hook in hooks]
        return FileVerdict(path, sides.upstream, sides.upstream, status, tuple(found))
    placed: list[tuple[Hook, Place]] = []
    refused: list[tuple[Hook, str]] = []
    bad: list[HookResult] = []
    for hook, is_there in zip(hooks, there, strict=True):
        place = locate(hook.anchor, tree)
        shared = also_upstream(hook, sides.base, sides.upstream)
        if is_there:
            place = NoPlace(f"{new} has exactly this code at this place; drop it")
        elif shared:
            place = NoPlace(
                f"{new} itself uses {', '.join(shared)}, which the hook brings: "
                "perhaps it was merged in other words"
            )
        if isinstance(place, Place):
            placed.append((hook, place))
        else:
            gone = find_scope(tree, hook.anchor.scope) is None
            status = Status.TARGET_DELETED if gone else Status.CONFLICT
            note = place.reason
            refused.append((hook, note))
            bad.append(_result(path, hook, status, note))
    content, how = sides.merged or b"", "git"
    if refused or not sides.clean or _problems(hooks, sides.upstream, content, path):
        content = insert_hooks(placed, sides.base, sides.patched, sides.upstream)
        how = "syntax"
        only = [hook for hook, _ in placed]
        if problems := _problems(only, sides.upstream, content, path):
            raise NotWholeLinesError(problems[0])
    lines = [hook.line for hook in placement_of(sides.upstream, content, path)]
    lines = lines if len(lines) == len(placed) else [0] * len(placed)
    good = [
        _result(path, hook, Status.CONTEXT_ONLY, "; ".join(place.notes), how, line)
        for (hook, place), line in zip(placed, lines, strict=True)
    ]
    marked = mark_hooks(content, file, refused, sides.labels) if refused else content
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


def check_edit(file: Path) -> None:
    """Check a file that a person edited.

    Raises:
        ToolError: a conflict is left, or it is not Python.
    """
    content = file.read_bytes()
    if has_markers(content):
        raise ToolError(
            f"{file}: a conflict is left; edit the file until no <<<<<<< remains, "
            "then run tools/rebase.sh continue"
        )
    parse_module(content, str(file))
