"""A module is read in one sitting, and a function fits on a screen."""

import ast

from own_modules import own_modules

MODULE_LINES, FUNCTION_LINES = 350, 60


def functions(text: str) -> list[tuple[str, int]]:
    """Name and length in lines of every function."""
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [
        (node.name, (node.end_lineno or 0) - node.lineno + 1)
        for node in ast.walk(ast.parse(text))
        if isinstance(node, kinds)
    ]


def too_long(texts: dict[str, str]) -> list[str]:
    """What is longer than it may be."""
    found = []
    for name, text in texts.items():
        if (lines := len(text.splitlines())) > MODULE_LINES:
            found.append(f"{name}: {lines} lines")
        for function, lines in functions(text):
            if lines > FUNCTION_LINES:
                found.append(f"{name}: {function}: {lines} lines")
    return found


def test_nothing_is_too_long() -> None:
    assert too_long(own_modules()) == []
