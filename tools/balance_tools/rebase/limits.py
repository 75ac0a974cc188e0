"""Limits that a release has and the pin has not: what is served here it may refuse."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from pathlib import Path

from balance_tools.drift.symbols import Modules
from balance_tools.paths import Paths
from balance_tools.rebase.move import Moved
from balance_tools.text import table

VARIABLES = "vllm/envs.py"
NAMED = re.compile(r"MAX|LIMIT|TIMEOUT")


def limits_of(tree: Path) -> dict[str, str]:
    if not (tree / VARIABLES).is_file():
        return {}
    return {
        node.target.id: ast.unparse(node.value)
        for node in ast.walk(Modules(tree).parse(VARIABLES))
        if isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.value is not None
        and NAMED.search(node.target.id)
    }


def limits_markdown(paths: Paths, moves: Sequence[Moved]) -> list[str]:
    """The section of the report: new limits, but for those that we bring to the pin."""
    fixes = sorted((paths.root / "vllm/fixes").glob("*.py"))
    fixes_text = "".join(file.read_text(encoding="utf-8") for file in fixes)
    rows = []
    for moved in (moved for moved in moves if moved.package == "vllm"):
        before = limits_of(moved.old)
        rows += [
            (f"`{name}`", f"`{value}`")
            for name, value in limits_of(moved.new).items()
            if name not in before and f'"{name}"' not in fixes_text
        ]
    if not rows:
        return []
    note = "Requests that are served here may pass one; tell users in CHANGELOG.md."
    return ["", "## New limits", "", note, "", *table(("variable", "default"), rows)]
