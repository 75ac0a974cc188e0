"""Write the new series, prove it, and put it in place of the old one."""

from __future__ import annotations

import shutil

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree, replacing
from balance_tools.paths import Paths
from balance_tools.rebase.journal import Plan, Session, Work
from balance_tools.series.apply import SERIES, Series, load_series, patched_files
from balance_tools.series.lint import lint_in_place

FAULT = "this is a fault of tools/rebase.sh, report it"


def export(work: Work, session: Session) -> None:
    """Write the new series, and prove it.

    Raises:
        ToolError: what was written does not give the tree that was proven; a fault of
            these tools.
    """
    remove_tree(work.final)
    for plan in session.plans:
        folder = work.final_series(plan.package)
        folder.mkdir(parents=True)
        for name, raw in plan.made.items():
            (folder / name).write_bytes(raw)
        (folder / SERIES).write_text("".join(f"{name}\n" for name in plan.made))
        _prove(plan, load_series(folder))


def _prove(plan: Plan, series: Series) -> None:
    for path, content in patched_files(series, plan.new_tree).items():
        if content != plan.read(path):
            raise ToolError(
                f"{series.directory}: {path} is not what was proven; {FAULT}"
            )
    problems = list(lint_in_place(series, plan.new_tree))
    if problems:
        raise ToolError(f"{problems[0]}; {FAULT}")


def install(paths: Paths, work: Work, session: Session) -> None:
    """Make the new series and lock those of the repository."""
    for plan in session.plans:
        target = paths.patches(plan.package)
        new = target.with_name(f".{plan.package}.new")
        remove_tree(new)
        shutil.copytree(work.final_series(plan.package), new)
        remove_tree(target)
        new.rename(target)
    with replacing(paths.lock) as part:
        part.write_text(session.lock, encoding="utf-8")
