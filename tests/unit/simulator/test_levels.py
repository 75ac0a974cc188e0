"""No part of the simulator imports one that needs it."""

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3] / "vllm_balance/simulator"


def imports():
    """By part, a folder or a file beside them, the parts that it imports."""
    found = defaultdict(set)
    for path in ROOT.rglob("*.py"):
        *folders, file = path.relative_to(ROOT).with_suffix("").parts
        part = (*folders, file)[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level == len(folders) + 1:
                names = [node.module] if node.module else [n.name for n in node.names]
                found[part] |= {name.partition(".")[0] for name in names} - {part}
    return found


def reached(part, of, seen):
    """All that a part needs, the parts of its parts too."""
    for other in of[part] - seen:
        seen |= {other} | reached(other, of, seen | {other})
    return seen


def test_no_arrow_runs_back_up():
    of = imports()
    assert of["rank"] >= {"requests", "step_time"}
    assert {part for part in [*of] if part in reached(part, of, set())} == set()
