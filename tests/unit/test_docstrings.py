"""Docstrings have one form: what ruff's pydocstyle rules do not see of it."""

import ast
import re

from own_modules import own_modules

PROSE = re.compile(
    r"\b[Rr]aises? (a )?\w*(Error|Exception)\b"
    r"|\b[A-Z]\w*Error (if|where|when|unless|names|with|on|for)\b"
)
FIELDS = re.compile(r"^(Attributes|Parameters|Return|Yield):$|:(param|return|raises)\b")


def deviations(text: str) -> list[str]:
    """Names of what has a docstring of another form."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, kinds) and (docstring := ast.get_docstring(node)):
            words = " ".join(docstring.split())
            fields = any(FIELDS.search(line) for line in docstring.splitlines())
            if PROSE.search(words) or fields:
                found.append(getattr(node, "name", "module"))
    return found


def test_exceptions_have_a_section_and_fields_have_strings() -> None:
    found = {name: deviations(text) for name, text in own_modules().items()}
    assert {name: those for name, those in found.items() if those} == {}
