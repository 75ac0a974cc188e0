"""Policies know nothing but rows: no engine, no clock, no chance, no files."""

import ast

import pytest

from conftest import FOLDER

PURE = sorted(FOLDER.glob("policies/*.py"))
ALLOWED = {
    *("bisect", "collections", "collections.abc", "dataclasses", "itertools", "math"),
    *("operator", "typing"),
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
