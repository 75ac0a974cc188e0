"""Upstream's own tests of the modules that the series touches, with and without it."""

from __future__ import annotations

import ast
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from balance_tools.drift.symbols import imports, module_of
from balance_tools.files import remove_tree
from balance_tools.verify.pytest_file import PASSED

# Folders of upstream's tests that need neither a GPU nor weights.
FOLDERS = ("tests/v1/core", "tests/v1/metrics", "tests/config", "tests/engine")
PLAIN, OFF, ON = "unpatched", "patched, off", "patched, on"

SWITCH_ON = "switch_balance_on"
# A pytest plugin that gives every scheduler a gate, which unit tests never make.
SWITCH_ON_TEXT = '''\
"""Give every scheduler of a test a balance gate with the policy cap."""

from functools import partial

import vllm.v1.core.sched.scheduler as scheduler
from vllm.v1.core.sched.balance.group.exchange import RowExchange
from vllm.v1.core.sched.balance.gate import BalanceGate
from vllm.v1.core.sched.balance.policies.by_name import create_policy
from vllm.v1.core.sched.balance.stats import BalanceStats


def create_balance_gate(self, config):
    policy, exchange = partial(create_policy, "cap"), RowExchange(timeout=1.0)
    return BalanceGate(self, policy, exchange, BalanceStats(policy="cap"))


scheduler.create_balance_gate = create_balance_gate
'''

# Wait for one for ever, inside Ray, where no time limit of pytest reaches.
NEED_A_GPU = ("tests/v1/metrics/test_ray_metrics.py",)


def select(tree: Path, touched: Sequence[str]) -> list[str]:
    """Return the test files of an sdist that use a touched module, sorted.

    A test uses what it imports, and what the helpers beside the tests import for it.
    """
    modules = {module_of(path) for path in touched}
    found = []
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("test_*.py")):
            name = path.relative_to(tree).as_posix()
            if name not in NEED_A_GPU and _uses(tree, name, modules, helpers=True):
                found.append(name)
    return found


def _uses(tree: Path, name: str, modules: set[str], helpers: bool) -> bool:
    parsed = ast.parse((tree / name).read_bytes())
    symbols = set(imports(parsed, module_of(name), name).values())
    symbols |= {
        alias.name
        for node in ast.walk(parsed)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    if any({symbol, symbol.rpartition(".")[0]} & modules for symbol in symbols):
        return True
    return helpers and any(
        _uses(tree, helper, modules, helpers=False)
        for helper in _helpers(tree, symbols)
    )


def _helpers(tree: Path, symbols: Iterable[str]) -> set[str]:
    """Return the modules beside the tests that symbols come from."""
    names = {s.rpartition(".")[0] for s in symbols if s.startswith("tests.")}
    files = {f"{name.replace('.', '/')}.py" for name in names}
    return {file for file in files if (tree / file).is_file()}


def copy_tests(tree: Path, folder: Path) -> None:
    """Copy the tests of an sdist, and none of its source, with our plugin.

    With upstream's settings of pytest, too; else it would find those of this project.
    """
    remove_tree(folder)
    shutil.copytree(tree / "tests", folder / "tests", symlinks=True)
    shutil.copy2(tree / "pyproject.toml", folder)
    (folder / f"{SWITCH_ON}.py").write_text(SWITCH_ON_TEXT)


def newly_failing(results: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return every test that passes unpatched and does not pass with the patches.

    If none passes unpatched, nothing could be compared; that is returned, too.
    """
    found = []
    if PASSED not in results[PLAIN].values():
        found.append("no test of upstream's passes without the patches")
    for name, result in results[PLAIN].items():
        for setup, other in results.items():
            if result == PASSED and other.get(name) != PASSED:
                found.append(f"{name}: {other.get(name, 'not run')} ({setup})")
    return found
