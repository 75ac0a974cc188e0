"""Docstrings have a form that ruff does not see all of."""

import ast
import re
from pathlib import Path

from balance_tools.run import listed_by_git

ROOT = Path(__file__).parents[2]
PROSE = re.compile(
    r"\b[Rr]aises? (a )?\w*(Error|Exception)\b"
    r"|\b[A-Z]\w*Error (if|where|when|unless|names|with|on|for)\b"
)
FIELDS = re.compile(
    r"^(Attributes|Parameters|Return|Yield):$|:(param|return|raises)\b", re.M
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def deviations(text):
    """What has exceptions or fields in the prose of its docstring."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, DOCUMENTED):
            docstring = ast.get_docstring(node) or ""
            if PROSE.search(" ".join(docstring.split())) or FIELDS.search(docstring):
                yield getattr(node, "name", "module")


def test_docstrings_have_the_form():
    names = [n for n in listed_by_git(ROOT, "--", "*.py") if not n.startswith("tests/")]
    assert {"setup.py", "tools/balance_tools/run.py"} <= set(names)
    found = {name: [*deviations((ROOT / name).read_text())] for name in names}
    assert {name: those for name, those in found.items() if those} == {}
