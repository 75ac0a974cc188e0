"""Policies know nothing but rows: no engine, no clock, no chance, no files."""

import ast
import subprocess
import sys

import pytest

from conftest import FOLDER

PURE = sorted(FOLDER.glob("policies/*.py"))
ALLOWED = {
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "math",
    "operator",
    "typing",
}


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.stem)
def test_imports_only_pure_modules(path):
    siblings = {each.stem for each in PURE}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= ALLOWED
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1, ast.unparse(node)
            allowed = siblings if node.level else ALLOWED
            assert node.module in allowed, ast.unparse(node)


def test_policies_load_neither_the_engine_nor_a_clock():
    program = f"""
import importlib.util, sys
before = set(sys.modules)
spec = importlib.util.spec_from_file_location(
    "balance", {str(FOLDER / "__init__.py")!r},
    submodule_search_locations=[{str(FOLDER)!r}])
sys.modules["balance"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["balance"])
import balance.policies.by_name
loaded = {{name.partition(".")[0] for name in set(sys.modules) - before}}
assert not loaded & {{"torch", "vllm", "time", "random", "numpy"}}, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True)
