"""The table of `vllm.fixes` says what calls them, and they need nothing of balance."""

import ast
import re
from pathlib import Path

from conftest import FOLDER

ROOT = Path(__file__).parents[3]
FIXES = ROOT / "vllm/fixes"
SECURITY = {"bodies", "grammars", "limits", "media", "request_checks", "trial"}
"""Modules that only `security-*.patch` call."""
IMPORT = re.compile(r"from vllm\.fixes\.(\w+) import (?:\(([^)]*)\)|(.*))")
TABLE = ast.get_docstring(ast.parse((FIXES / "__init__.py").read_text())) or ""


def imported(text):
    """The functions that a text imports of fixes which no advisory asks for."""
    return {
        f"{module}.{name.strip()}"
        for module, several, one in IMPORT.findall(text)
        for name in (several or one).split(",")
        if module not in SECURITY and name.strip()
    }


def callers():
    """By a caller's name in the table, its text."""
    series = ROOT.glob("patches/vllm/*.patch")
    found = {path.name.rpartition("-")[2]: path.read_text() for path in series}
    for path in FOLDER.glob("*/*.py"):
        found[f"{path.parent.name}.{path.stem}"] = path.read_text()
    return found | {path.stem: path.read_text() for path in FIXES.glob("*.py")}


def test_the_table_names_each_function_and_who_calls_it():
    rows = re.findall(r"^\| (\w+)\.(\w+) \| ([^|]+) \|", TABLE, re.MULTILINE)
    told = {
        (f"{module}.{name}", caller)
        for module, name, callers in rows
        for caller in callers.split(", ")
    }
    found = {
        (function, caller)
        for caller, text in callers().items()
        for function in imported(text)
    }
    assert told == found
    for module, name, _ in rows:
        text = (FIXES / f"{module}.py").read_text()
        assert re.search(rf"^def {name}\(", text, re.MULTILINE), name
