"""Upstream's own tests of the modules that the series touches, with and without it."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from balance_tools.files import remove_tree
from balance_tools.progress import progress
from balance_tools.rebase.symbols import imports

# Folders of upstream's tests that need neither a GPU nor weights.
FOLDERS = ("tests/v1/core", "tests/v1/metrics", "tests/config", "tests/engine")
SECONDS_A_FILE = 900
PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
PLAIN, OFF, ON = "unpatched", "patched, off", "patched, on"

# A pytest plugin that gives every scheduler a gate, which unit tests never make.
SWITCH_ON = '''\
"""Give every scheduler of a test a balance gate with the policy cap."""

import vllm.v1.core.sched.scheduler as scheduler
from vllm.v1.core.sched.balance.gate import BalanceGate

scheduler.create_balance_gate = lambda self, config: BalanceGate(self, "cap")
'''


@dataclass(frozen=True)
class Setup:
    """One way to run the tests: its name, the interpreter, and pytest plugins."""

    name: str
    python: Path
    plugins: tuple[str, ...] = ()


def select(tree: Path, touched: Sequence[str]) -> list[str]:
    """Return the test files of an sdist that import a touched module, sorted."""
    modules = {path.removesuffix(".py").replace("/", ".") for path in touched}
    found = []
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("test_*.py")):
            name = path.relative_to(tree).as_posix()
            used = imports(
                ast.parse(path.read_bytes()), name[:-3].replace("/", "."), name
            )
            if any(_is_in(symbol, modules) for symbol in used.values()):
                found.append(name)
    return found


def _is_in(symbol: str, modules: set[str]) -> bool:
    return symbol in modules or symbol.rpartition(".")[0] in modules


def run_tests(
    tree: Path, files: Sequence[str], setups: Sequence[Setup], work: Path, hub: Path
) -> dict[str, dict[str, str]]:
    """Run the files in every setup, one process a file.

    Args:
        tree: The sdist; its tests are copied.
        files: From `select`.
        setups: The setups to compare.
        work: Folder for the copy and for pytest's reports.
        hub: HF_HOME.

    Returns:
        Setup name to test id to PASSED, SKIPPED or FAILED.
    """
    copy = work / "upstream"
    remove_tree(copy)
    shutil.copytree(tree / "tests", copy / "tests", symlinks=True)
    (copy / "switch_balance_on.py").write_text(SWITCH_ON)
    results: dict[str, dict[str, str]] = {setup.name: {} for setup in setups}
    total = len(files) * len(setups)
    with progress(f"upstream's tests: {total} runs of a file", total, "run") as report:
        done = 0
        for file in files:
            for setup in setups:
                xml = work / "junit.xml"
                _run(copy, file, setup, xml, hub)
                results[setup.name].update(read_junit(xml, file))
                done += 1
                report(done)
                print(
                    f"{file}: {setup.name}: {_counts(results, setup, file)}",
                    file=sys.stderr,
                )
    return results


def _run(copy: Path, file: str, setup: Setup, xml: Path, hub: Path) -> None:
    xml.unlink(missing_ok=True)
    plugins = [word for name in setup.plugins for word in ("-p", name)]
    command = [str(setup.python), "-m", "pytest", file, "-q", f"--junitxml={xml}"]
    environment = {
        **os.environ,
        "HF_HOME": str(hub),
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(copy),
        "PYTHONSAFEPATH": "1",
    }
    log = xml.with_name(f"{Path(file).stem}-{setup.name.replace(', ', '-')}.log")
    with log.open("w") as output:
        try:
            subprocess.run(
                [*command, "-p", "no:cacheprovider", *plugins],
                cwd=copy,
                env=environment,
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=SECONDS_A_FILE,
            )
        except subprocess.TimeoutExpired:
            print(f"{file}: no end after {SECONDS_A_FILE} s", file=sys.stderr)


def read_junit(xml: Path, file: str) -> dict[str, str]:
    """Return test id to result of one report; a missing report is one failure."""
    if not xml.is_file():
        return {f"{file}::(did not run)": FAILED}
    results = {}
    for case in ElementTree.parse(xml).iter("testcase"):
        result = PASSED
        for child in case:
            if child.tag in ("failure", "error"):
                result = FAILED
            elif child.tag == "skipped":
                result = SKIPPED
        results[f"{file}::{case.get('classname')}::{case.get('name')}"] = result
    return results or {f"{file}::(no tests)": FAILED}


def _counts(results: Mapping[str, dict[str, str]], setup: Setup, file: str) -> str:
    mine = [
        r for name, r in results[setup.name].items() if name.startswith(f"{file}::")
    ]
    return ", ".join(f"{mine.count(r)} {r}" for r in (PASSED, FAILED, SKIPPED))


def newly_failing(results: Mapping[str, dict[str, str]]) -> list[str]:
    """Return every test that passes unpatched and does not pass with the patches."""
    found = []
    for name, result in results[PLAIN].items():
        for setup, other in results.items():
            if result == PASSED and other.get(name) != PASSED:
                found.append(f"{name}: {other.get(name, 'not run')} ({setup})")
    return found
