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


def test_the_table_names_each_function_and_who_calls_it():
    series = ROOT.glob("patches/vllm/*.patch")
    callers = {path.name.rpartition("-")[2]: path for path in series}
    callers |= {f"{p.parent.name}.{p.stem}": p for p in FOLDER.glob("*/*.py")}
    callers |= {path.stem: path for path in FIXES.glob("*.py")}
    found = {
        (function, caller)
        for caller, path in callers.items()
        for function in imported(path.read_text())
    }
    rows = re.findall(r"^\| (\w+\.\w+) \| ([^|]+) \|", TABLE, re.MULTILINE)
    assert {(name, each) for name, who in rows for each in who.split(", ")} == found
