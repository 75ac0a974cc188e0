"""Our modules are short, and docstrings have a form that ruff does not see all of."""

import ast
import re
from pathlib import Path

from balance_tools.run import listed_by_git

ROOT = Path(__file__).parents[2]
MODULE_LINES, FUNCTION_LINES = 450, 75
PROSE = re.compile(
    r"\b[Rr]aises? (a )?\w*(Error|Exception)\b"
    r"|\b[A-Z]\w*Error (if|where|when|unless|names|with|on|for)\b"
)
FIELDS = re.compile(
    r"^(Attributes|Parameters|Return|Yield):$|:(param|return|raises)\b", re.M
)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def deviations(text):
    """What is too long, or has exceptions or fields in a docstring's prose."""
    if (lines := len(text.splitlines())) > MODULE_LINES:
        yield f"{lines} lines"
    for node in ast.walk(ast.parse(text)):
        name = getattr(node, "name", "module")
        if isinstance(node, FUNCTIONS):
            lines = (node.end_lineno or 0) - node.lineno + 1
            if lines > FUNCTION_LINES:
                yield f"{name}: {lines} lines"
        if isinstance(node, (ast.Module, ast.ClassDef, *FUNCTIONS)):
            docstring = ast.get_docstring(node) or ""
            if PROSE.search(" ".join(docstring.split())) or FIELDS.search(docstring):
                yield f"{name}: its docstring"


def test_modules_fit_a_sitting_functions_a_screen_and_docstrings_the_form():
    names = [n for n in listed_by_git(ROOT, "--", "*.py") if not n.startswith("tests/")]
    assert {"setup.py", "tools/balance_tools/run.py"} <= set(names)
    found = {name: [*deviations((ROOT / name).read_text())] for name in names}
    assert {name: those for name, those in found.items() if those} == {}
