"""Reading syntax trees for the checks of where hooks must stand; plain `ast`."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

FuncDef = ast.FunctionDef | ast.AsyncFunctionDef


def function(tree: ast.Module, qualified: str) -> FuncDef:
    """Return the one function or method of this name."""
    *classes, name = qualified.split(".")
    body: list[ast.stmt] = tree.body
    for wanted in classes:
        (owner,) = [n for n in body if isinstance(n, ast.ClassDef) and n.name == wanted]
        body = owner.body
    (found,) = [n for n in body if isinstance(n, FuncDef) and n.name == name]
    return found


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield every block of statements below a node."""
    for child in ast.walk(node):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(child, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def block_with(node: ast.AST, test: Callable[[str], bool]) -> tuple[list[str], int]:
    """Return the block that holds the one simple statement that passes the test."""
    found = [
        ([ast.unparse(s) for s in block], index)
        for block in blocks(node)
        for index, statement in enumerate(block)
        if not hasattr(statement, "body") and test(ast.unparse(statement))
    ]
    assert len(found) == 1, f"expected one such statement, found {len(found)}"
    return found[0]


def klass(tree: ast.Module, name: str) -> ast.ClassDef:
    """Return the one class of this name at the top of the module."""
    (found,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == name]
    return found


def fields(owner: ast.ClassDef) -> dict[str, str]:
    """Return the annotated fields of a class with their default, "" without one."""
    found = [n for n in owner.body if isinstance(n, ast.AnnAssign)]
    names = [ast.unparse(n.target) for n in found]
    assert len(names) == len(set(names)), "a field stands there twice"
    return {
        ast.unparse(n.target): ast.unparse(n.value) if n.value else "" for n in found
    }


def arguments(tree: ast.AST, callee: str) -> dict[str, str]:
    """Return the keyword arguments of the one call of `callee`."""
    calls = [
        n
        for n in ast.walk(tree)
        if isinstance(n, ast.Call) and ast.unparse(n.func) == callee
    ]
    assert len(calls) == 1, f"expected one call of {callee}, found {len(calls)}"
    names = [k.arg for k in calls[0].keywords]
    assert len(names) == len(set(names)), "an argument is given twice"
    return {k.arg: ast.unparse(k.value) for k in calls[0].keywords if k.arg}


def imported(module: str, *names: str) -> Callable[[ast.Module], None]:
    """Return a check that a module imports names, each once, before its first class."""

    def check(tree: ast.Module) -> None:
        classes = [n.lineno for n in tree.body if isinstance(n, ast.ClassDef)]
        found = [
            alias.name
            for n in tree.body
            if isinstance(n, ast.ImportFrom)
            and n.module == module
            and n.lineno < min(classes, default=n.lineno + 1)
            for alias in n.names
        ]
        for name in names:
            assert found.count(name) == 1, f"{name} is imported {found.count(name)}x"

    check.__doc__ = f"{', '.join(names)} is imported from {module} at the top."
    return check


def once(tree: ast.Module, text: str) -> None:
    """Assert that this piece of code stands in the module once."""
    found = ast.unparse(tree).count(text)
    assert found == 1, f"expected {text} once, found it {found} times"
