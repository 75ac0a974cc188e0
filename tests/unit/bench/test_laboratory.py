"""The laboratory stands beside the product, and on no test."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[3]


def imported(path):
    """The first part of the names of the modules that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def test_it_imports_no_test():
    files = [*(ROOT / "bench").rglob("*.py")]
    tests = {path.stem for path in (ROOT / "tests").rglob("*.py")}
    found = {name for path in files for name in imported(path)}
    assert {"grids", "vllm_balance"} <= found
    assert found & tests == set()


def test_the_product_knows_no_rival():
    files = [*(ROOT / "vllm_balance/simulator").rglob("*.py")]
    assert len(files) > 30
    words = ("sglang-", "atom", "trtllm", "0.30")
    found = [
        (path.name, word)
        for path in files
        for word in words
        if f'"{word}' in path.read_text(encoding="utf-8")
    ]
    assert found == []
