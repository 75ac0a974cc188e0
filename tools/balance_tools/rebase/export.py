"""Write the new series, prove it, and put it in place of the old one."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree, replacing
from balance_tools.hooks.model import PatchResult, Status
from balance_tools.paths import Paths
from balance_tools.rebase.journal import Plan, Session, Work
from balance_tools.series.apply import (
    SERIES,
    Series,
    diff_file,
    load_series,
    patched_files,
)
from balance_tools.series.lint import lint_in_place
from balance_tools.series.patchfile import Patch, parse_patch

FAULT = "this is a fault of tools/rebase.sh, report it"


def export(work: Work, session: Session, series: Mapping[str, Series]) -> Session:
    """Write the new series and lock, prove them, and say what became of each patch.

    Raises:
        ToolError: what was written does not give the tree that was proven; a fault of
            these tools.
    """
    remove_tree(work.final)
    results: list[PatchResult] = []
    for plan in session.plans:
        mine = [result for result in session.results if result.package == plan.package]
        results += _export_package(work, plan, series[plan.package], mine)
    if session.lock:
        (work.final / "upstream.toml").write_text(session.lock, encoding="utf-8")
    return replace(session, results=tuple(results))


def _export_package(
    work: Work, plan: Plan, series: Series, results: list[PatchResult]
) -> list[PatchResult]:
    folder = work.final_series(plan.package)
    folder.mkdir(parents=True)
    found = []
    for index, (patch, result) in enumerate(zip(series.patches, results, strict=True)):
        if not result.dropped:
            # It leads from so many patches done to one more.
            old, new = (
                {path: plan.read(path, count) or b"" for path in plan.done[index]}
                for count in (index, index + 1)
            )
            paths = sorted((p for p in old if old[p] != new[p]), key=str.encode)
            diffs = (diff_file(path, old[path], new[path]) for path in paths)
            raw = patch.header.raw + b"".join(diffs)
            (folder / patch.name).write_bytes(raw)
            result = _final(patch, raw, result)
        found.append(result)
    kept = "".join(f"{result.name}\n" for result in found if not result.dropped)
    (folder / SERIES).write_text(kept, encoding="utf-8")
    _prove(plan, load_series(folder))
    return found


def _final(patch: Patch, raw: bytes, result: PatchResult) -> PatchResult:
    """Say how much of the patch's text changed."""
    if result.status.needs_human:  # of a dry run
        return result
    if raw == patch.raw:
        status = Status.UNTOUCHED
    elif parse_patch(patch.name, raw).changes == patch.changes:
        status = Status.CONTEXT_ONLY
    else:
        status = Status.CONTENT_CHANGED
    hooks = tuple(replace(hook, status=status) for hook in result.hooks)
    return replace(result, status=status, hooks=hooks)


def _prove(plan: Plan, series: Series) -> None:
    for path, content in patched_files(series, plan.new_tree).items():
        if content != plan.read(path):
            raise ToolError(
                f"{series.directory}: {path} is not what was proven; {FAULT}"
            )
    problems = list(lint_in_place(series, plan.new_tree))
    if problems:
        raise ToolError(f"{problems[0]}; {FAULT}")


def install(paths: Paths, source: Path, packages: Iterable[str]) -> None:
    """Make series and lock those of a folder."""
    for package in packages:
        target = paths.patches(package)
        new = target.with_name(f".{package}.new")
        remove_tree(new)
        shutil.copytree(source / "patches" / package, new)
        remove_tree(target)
        new.rename(target)
    with replacing(paths.lock) as part:
        shutil.copy2(source / paths.lock.name, part)
