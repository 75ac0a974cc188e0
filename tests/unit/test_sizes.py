"""Modules and functions stay small enough to be read at once."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("bench", "vllm/benchmarks/dp_balance")
MODULE_LINES, FUNCTION_LINES = 350, 60


def test_no_module_or_function_is_too_long() -> None:
    paths = [path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")]
    assert len(paths) > 30
    long = []
    for path in paths:
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > MODULE_LINES:
            long.append(f"{path}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef) and node.end_lineno:
                lines = node.end_lineno - node.lineno + 1
                if lines > FUNCTION_LINES:
                    long.append(f"{path}: {node.name}, {lines} lines")
    assert long == []
