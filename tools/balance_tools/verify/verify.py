"""Build the rebased tree, and run upstream's own tests of the modules that we touch."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from balance_tools.distribution import Choice
from balance_tools.environment.reference import make_env, pip
from balance_tools.errors import ToolError
from balance_tools.files import exclusive
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.series.apply import load_series
from balance_tools.text import table
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine
from balance_tools.vendoring.checkout import make_checkout
from balance_tools.verify.pytest_file import (
    Setup,
    count,
    run_file,
    termination_interrupts,
)
from balance_tools.verify.upstream_tests import (
    OFF,
    ON,
    PLAIN,
    SWITCH_ON,
    copy_tests,
    newly_failing,
    select,
    write_hub,
)
from balance_tools.wheel.build import build_wheel

UPSTREAM = "vllm"
# What the conftest of upstream's tests imports.
TEST_REQUIREMENTS = ("tblib", "pytest-asyncio")
Results = dict[str, str]
"""Id of a test to what came of it."""


@dataclass(frozen=True)
class Bench:
    """What is verified, and where."""

    paths: Paths
    name: str
    """Of the line, or "pin"."""
    lock: Path
    """Of the release."""
    series: Path
    """Folder with the series of each package."""

    @property
    def folder(self) -> Path:
        """All that belongs to it."""
        return self.paths.build / "verify" / self.name


def verify(bench: Bench) -> str:
    """Verify a series and return the report.

    Raises:
        ToolError: a test that passes without the patches fails with them. Then
            verify.md in build/verify/NAME says which.
    """
    with exclusive(bench.folder / ".lock"), termination_interrupts():
        results = _run_all(bench)
    failing = newly_failing(results)
    label = f"vllm {load_lock(bench.lock).vllm.version}"
    report, text = bench.folder / "verify.md", markdown(label, results, failing)
    report.write_text(text, encoding="utf-8")
    if failing:
        raise ToolError(
            f"{report}: expected no newly failing test, found {len(failing)}, first "
            f"{failing[0]}; correct the patch or our files and verify again"
        )
    return text


def markdown(label: str, results: Mapping[str, Results], failing: Sequence[str]) -> str:
    """Return a table with a row for each way to run the tests, and what fails."""
    rows = [(name, count(found)) for name, found in results.items()]
    lines = [f"# Verification on {label}", "", *table(("tests", "results"), rows)]
    lines += ["", f"Newly failing: {len(failing)}.", ""]
    return "\n".join([*lines, *(f"- {one}" for one in failing)]) + "\n"


def _run_all(bench: Bench) -> dict[str, Results]:
    """Run upstream's tests of the touched modules on a wheel with and one without."""
    patched, plain = (
        make_checkout(bench.paths, bench.folder / name, bench.lock, series)
        for name, series in (("patched", bench.series), ("unpatched", None))
    )
    ours, theirs = (build_wheel(r, Choice(), r.dist) for r in (patched, plain))
    copy, hub = bench.folder / "upstream", bench.folder / "hub"
    tree = ensure_pristine(load_lock(bench.lock).vllm, bench.paths)
    copy_tests(tree, copy)
    write_hub(hub)
    variables = {"HF_HOME": str(hub), "PYTHONPATH": str(copy)}
    files = select(tree, load_series(bench.series / UPSTREAM).paths)
    return {
        name: _run(
            Setup(name, _python(patched, wheel), copy, plugins, variables),
            files,
            bench.folder / "logs",
        )
        for name, wheel, plugins in (
            (OFF, ours, ()),
            (ON, ours, (SWITCH_ON,)),
            (PLAIN, theirs, ()),
        )
    }


def _python(root: Paths, wheel: Path) -> Path:
    """Install a wheel in place of the other one; seconds after the first time."""
    python = make_env(root, wheel) / "bin" / "python"
    pip(python, "install", *TEST_REQUIREMENTS)
    return python


def _run(setup: Setup, files: Sequence[str], logs: Path) -> Results:
    """Run test files one after the other and say how each went."""
    results: Results = {}
    title = f"{setup.name}: {len(files)} test files"
    with progress(title, len(files), "file") as report:
        for done, file in enumerate(files, 1):
            found = run_file(setup, file, logs)
            results |= found
            report(done)
            print(f"{file}: {count(found)}", file=sys.stderr, flush=True)
    return results
