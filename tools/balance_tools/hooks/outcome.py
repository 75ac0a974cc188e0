"""Decide what becomes of one file of a patch on the new release.

Git's merge is taken if the syntax proves it; else the hooks are put at their places by
syntax; else a person decides.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.hooks.locate import NoPlace, Place, locate
from balance_tools.hooks.markers import (
    has_markers,
    label_conflicts,
    mark_hooks,
    what_changed,
)
from balance_tools.hooks.model import FileVerdict, HookResult, Labels, Status, worst
from balance_tools.hooks.moved import Candidate, find_moved
from balance_tools.hooks.placement import Hook, check_placement, placement_of
from balance_tools.hooks.reapply import NotWholeLinesError, reapply
from balance_tools.hooks.upstreamed import already_there, in_other_words
from balance_tools.series.patchfile import FilePatch
from balance_tools.text import parse_module

RIGHT, UNPROVEN, STOPPED = "right", "unproven", "stopped"
"""What git alone would do with a file: what is proven, what is not, a conflict."""
FindMoved = Callable[[str, ast.AST], Candidate | None]


@dataclass(frozen=True)
class Sides:
    """Every version of one file that a decision needs."""

    base: bytes | None
    """Old upstream with the patches before this one; None if the patch creates."""
    patched: bytes | None
    """The same with this patch; None if the patch deletes."""
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


def decide(
    file: FilePatch,
    sides: Sides,
    paths: Sequence[str],
    read_upstream: Callable[[str], bytes | None],
) -> FileVerdict:
    """Return what to do with one file.

    Args:
        file: The part of the patch.
        sides: The versions of the file.
        paths: Every Python file of new upstream.
        read_upstream: Reads another file of new upstream (with earlier patches).
    """
    path = file.path

    def find(scope: str, old_tree: ast.AST) -> Candidate | None:
        return find_moved(scope, path, old_tree, paths, read_upstream)

    if sides.link is not None:
        note = f"{path} is a symbolic link to {sides.link} in {sides.labels.new}"
        return _not_placed(path, sides, Status.TARGET_MOVED, note)
    if sides.base is None:
        return _created(path, sides)
    if sides.patched is None:
        return _deleted(path, sides)
    if not path.endswith(".py"):
        return _text(path, sides)
    try:
        return _module(path, sides, find, read_upstream)
    except ToolError as error:
        return _not_placed(path, sides, Status.CONFLICT, str(error))


def _created(path: str, sides: Sides) -> FileVerdict:
    if sides.upstream is None:
        return FileVerdict(path, sides.patched, sides.patched, Status.CONTEXT_ONLY)
    if sides.upstream == sides.patched:
        return FileVerdict(
            path, sides.upstream, sides.upstream, Status.ALREADY_UPSTREAM
        )
    note = f"{path}, which the patch creates, exists in {sides.labels.new}"
    return _not_placed(path, sides, Status.CONFLICT, note)


def _deleted(path: str, sides: Sides) -> FileVerdict:
    if sides.upstream is None:
        return FileVerdict(path, None, None, Status.ALREADY_UPSTREAM)
    if sides.upstream == sides.base:
        return FileVerdict(path, None, None, Status.CONTEXT_ONLY)
    note = f"{path}, which the patch deletes, was changed in {sides.labels.new}"
    return _not_placed(path, sides, Status.CONFLICT, note)


def _text(path: str, sides: Sides) -> FileVerdict:
    if sides.upstream is None:
        note = f"{path} is gone in {sides.labels.new}"
        return _not_placed(path, sides, Status.TARGET_DELETED, note)
    if not sides.clean:
        note = f"{path} is not Python: only git could place the hunk, and did not"
        return _not_placed(path, sides, Status.CONFLICT, note)
    same = sides.merged == sides.upstream
    status = Status.ALREADY_UPSTREAM if same else Status.CONTEXT_ONLY
    note = f"{path} is not Python: placed by git alone, look at it"
    return FileVerdict(path, sides.merged, sides.merged, status, notes=(note,))


def _not_placed(path: str, sides: Sides, status: Status, note: str) -> FileVerdict:
    content = sides.upstream
    if sides.merged is not None and not sides.clean:
        content = label_conflicts(sides.merged, sides.labels, note)
    return FileVerdict(path, content, sides.upstream, status, notes=(note,))


def _module(
    path: str,
    sides: Sides,
    find: FindMoved,
    read_upstream: Callable[[str], bytes | None],
) -> FileVerdict:
    base, patched = sides.base or b"", sides.patched or b""
    hooks = placement_of(base, patched, path)
    old_tree = parse_module(base, path)
    if sides.upstream is None:
        return _file_gone(path, sides, hooks, old_tree, find, read_upstream)
    new_tree = parse_module(sides.upstream, path)
    there = [already_there(hook, new_tree) for hook in hooks]
    if hooks and all(there) and sides.merged == sides.upstream and sides.clean:
        results = tuple(
            _result(path, hook, Status.ALREADY_UPSTREAM, "found at its place")
            for hook in hooks
        )
        return FileVerdict(
            path, sides.upstream, sides.upstream, Status.ALREADY_UPSTREAM, results
        )
    refused: list[tuple[Hook, HookResult]] = []
    placed: list[tuple[Hook, Place]] = []
    for hook, is_there in zip(hooks, there, strict=True):
        verdict = _verdict(path, sides, hook, is_there, old_tree, new_tree, find)
        if isinstance(verdict, Place):
            placed.append((hook, verdict))
        else:
            refused.append((hook, verdict))
    git = _git_alone(path, sides, hooks)
    try:
        content, how = _content(path, sides, placed, git == RIGHT and not refused)
    except NotWholeLinesError as error:
        note = f"{path}: {error}; upstream formats this code otherwise"
        return _not_placed(path, replace(sides, clean=True), Status.CONFLICT, note)
    results = tuple(
        _result(path, hook, Status.CONTEXT_ONLY, "; ".join(place.notes), how)
        for hook, place in placed
    )
    results = tuple(replace(result, git=git) for result in results)
    if not refused:
        results = _with_lines(results, sides.upstream, content, path)
        return FileVerdict(path, content, content, Status.CONTEXT_ONLY, results)
    bad = tuple(replace(result, git=git) for _, result in refused)
    marked = mark_hooks(
        content, base, patched, [(h, r.note) for h, r in refused], sides.labels
    )
    status = worst([result.status for result in bad])
    return FileVerdict(path, marked, content, status, (*results, *bad))


def _result(
    path: str, hook: Hook, status: Status, note: str, how: str = ""
) -> HookResult:
    return HookResult(path, hook.anchor.scope, hook.line, 0, how, status, note)


def _verdict(
    path: str,
    sides: Sides,
    hook: Hook,
    is_there: bool,
    old_tree: ast.Module,
    new_tree: ast.Module,
    find: FindMoved,
) -> Place | HookResult:
    """Return the place of a hook, or why a person must decide."""
    new = sides.labels.new
    if is_there:
        note = f"{new} has exactly this code at this place; drop it from the patch"
        return _result(path, hook, Status.CONFLICT, note)
    if shared := in_other_words(hook, old_tree, new_tree):
        note = (
            f"{new} itself now uses {', '.join(shared)}, which the hook brings: "
            "perhaps it was merged in other words"
        )
        return _result(path, hook, Status.CONFLICT, note)
    place = locate(hook.anchor, new_tree)
    if isinstance(place, Place):
        return place
    return _result(path, hook, *_why_not(path, hook, place, old_tree, new_tree, find))


def _why_not(
    path: str,
    hook: Hook,
    place: NoPlace,
    old_tree: ast.Module,
    new_tree: ast.Module | None,
    find: FindMoved,
) -> tuple[Status, str]:
    scope = hook.anchor.scope
    changed = what_changed(scope, old_tree, new_tree)
    if not changed.endswith("is gone"):
        return Status.CONFLICT, f"{place.reason} ({changed})"
    moved = find(scope, old_tree)
    if moved is None:
        return Status.TARGET_DELETED, f"{place.reason}, and nothing like it was found"
    return Status.TARGET_MOVED, f"{place.reason}; perhaps it is now {moved}"


def _git_alone(path: str, sides: Sides, hooks: list[Hook]) -> str:
    """Say what the file would be if git were believed."""
    if not sides.clean or sides.merged is None:
        return STOPPED
    try:
        problems = check_placement(hooks, sides.upstream or b"", sides.merged, path)
    except ToolError:  # git's merge is not Python
        return UNPROVEN
    return UNPROVEN if problems else RIGHT


def _content(
    path: str, sides: Sides, placed: list[tuple[Hook, Place]], by_git: bool
) -> tuple[bytes, str]:
    """Return the file with every placed hook, and who placed them.

    Raises:
        NotWholeLinesError: a place shares its line with other code, or what was put
            there does not pass the placement check.
    """
    upstream = sides.upstream or b""
    if by_git and sides.merged is not None:
        return sides.merged, "git"
    content = reapply(placed, sides.base or b"", sides.patched or b"", upstream)
    found = check_placement([hook for hook, _ in placed], upstream, content, path)
    if found:
        raise NotWholeLinesError(str(found[0]))
    return content, "syntax"


def _with_lines(
    results: tuple[HookResult, ...], upstream: bytes, content: bytes, path: str
) -> tuple[HookResult, ...]:
    """Fill in where the hooks stand now; both lists are in the order of the file."""
    lines = [hook.line for hook in placement_of(upstream, content, path)]
    if len(lines) != len(results):
        return results
    pairs = zip(results, lines, strict=True)
    return tuple(replace(result, new_line=line) for result, line in pairs)


def _file_gone(
    path: str,
    sides: Sides,
    hooks: list[Hook],
    old_tree: ast.Module,
    find: FindMoved,
    read_upstream: Callable[[str], bytes | None],
) -> FileVerdict:
    """Propose the file to which upstream moved the functions of a deleted one."""
    gone = f"{path} is gone in {sides.labels.new}"
    scopes = [hook.anchor.scope for hook in hooks if hook.anchor.scope]
    found = [find(scope, old_tree) for scope in dict.fromkeys(scopes)]
    likely = [candidate for candidate in found if candidate is not None]
    if not likely:
        note = f"{gone}; nothing like it is left"
        return FileVerdict(path, None, None, Status.TARGET_DELETED, notes=(note,))
    target = likely[0].path
    upstream = read_upstream(target) or b""
    blocks = [(hook, f"{gone}; perhaps here") for hook in hooks]
    content = mark_hooks(
        upstream, sides.base or b"", sides.patched or b"", blocks, sides.labels
    )
    results = tuple(
        _result(path, hook, Status.TARGET_MOVED, f"perhaps in {target}")
        for hook in hooks
    )
    note = f"{gone}; perhaps its code moved: {'; '.join(map(str, likely))}"
    return FileVerdict(
        path, content, None, Status.TARGET_MOVED, results, (note,), target
    )


def check_edit(file: Path) -> None:
    """Check a file that a person edited.

    Raises:
        ToolError: a conflict is left, or it is not Python though its name says so.
    """
    content = file.read_bytes()
    if has_markers(content):
        raise ToolError(
            f"{file}: a conflict is left; edit the file until no <<<<<<< remains, "
            "then run tools/rebase.sh continue"
        )
    if file.suffix == ".py":
        parse_module(content, str(file))
