"""Say which commit of upstream took the place of a hook, from a clone of upstream."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from balance_tools.contract.history import first_without
from balance_tools.errors import ToolError
from balance_tools.hooks.locate import Anchor, Place, locate
from balance_tools.hooks.model import HookResult, PatchResult
from balance_tools.hooks.placement import placement_of
from balance_tools.rebase.repo import Repo, patch_ref
from balance_tools.rebase.session import Plan, Session, Work
from balance_tools.series.apply import Series
from balance_tools.series.patchfile import Patch
from balance_tools.text import parse_module

PACKAGE = "vllm"


def with_culprits(work: Work, session: Session, series: Series, clone: Path) -> Session:
    """Add to what has no place in a release the commit that took it.

    Args:
        work: Of the rebase, with its two-tree repository.
        session: Of the rebase.
        series: Of vLLM, as it was.
        clone: Of upstream, with the tags of both releases.

    Returns:
        The session, with the commits in the notes of the hooks and patches.

    Raises:
        ToolError: it is no clone, or lacks a tag.
    """
    plan = next(plan for plan in session.plans if plan.package == PACKAGE)
    patches = {patch.name: at for at, patch in enumerate(series.patches)}

    def traced(result: PatchResult) -> PatchResult:
        stopped = result.package == PACKAGE and result.status.needs_human
        if not stopped:
            return result
        at = patches[result.name]
        return _Tracer(work, plan, at, series.patches[at], clone).traced(result)

    results = tuple(map(traced, session.results))
    pending = session.pending
    if pending is not None:
        pending = replace(pending, result=traced(pending.result))
    return replace(session, results=results, pending=pending)


class _Tracer:
    """One patch that stopped."""

    def __init__(
        self, work: Work, plan: Plan, at: int, patch: Patch, clone: Path
    ) -> None:
        self._repo = Repo(work.repo(plan.package))
        self._plan, self._at, self._patch, self._clone = plan, at, patch, clone

    def traced(self, result: PatchResult) -> PatchResult:
        hooks = tuple(map(self._hook, result.hooks))
        told = {hook.path for hook in result.hooks}
        gone = tuple(
            f"{file.path} was deleted by {said}"
            for file in self._patch.files
            if file.path not in told and (said := self._search(file.path, _is_there))
        )
        return replace(result, hooks=hooks, notes=(*result.notes, *gone))

    def _hook(self, hook: HookResult) -> HookResult:
        anchor = self._anchors(hook.path).get((hook.scope, hook.old_line))
        if not hook.status.needs_human or anchor is None:
            return hook
        said = self._search(hook.path, partial(_has_place, anchor))
        return replace(hook, note=f"{hook.note}; by {said}") if said else hook

    def _anchors(self, path: str) -> dict[tuple[str, int], Anchor]:
        base = self._repo.read(patch_ref(self._at), path) or b""
        patched = self._repo.read(patch_ref(self._at + 1), path) or b""
        hooks = placement_of(base, patched, path)
        return {(hook.anchor.scope, hook.line): hook.anchor for hook in hooks}

    def _search(self, path: str, fits: Callable[[bytes], bool]) -> str:
        old, new = (
            label.rpartition(" ")[2]
            for label in (self._plan.old_label, self._plan.new_label)
        )
        return first_without(self._clone, old, new, path, fits)


def _is_there(content: bytes) -> bool:
    return True


def _has_place(anchor: Anchor, content: bytes) -> bool:
    try:
        tree = parse_module(content, "a commit")
    except ToolError:
        return False
    return isinstance(locate(anchor, tree), Place)
