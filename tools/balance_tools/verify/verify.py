"""Build the rebased tree and run its tests: ours, and upstream's for what we touch."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from balance_tools.distribution import Choice
from balance_tools.environment.reference import make_env, pip
from balance_tools.errors import ToolError
from balance_tools.files import exclusive
from balance_tools.paths import Paths
from balance_tools.series.apply import load_series
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine
from balance_tools.vendoring.checkout import make_checkout
from balance_tools.vendoring.vendor import vendor
from balance_tools.verify import upstream_tests as upstream
from balance_tools.verify.pytest_file import FAILED, PASSED, Setup, count, run_file
from balance_tools.wheel.build import build_wheel

UPSTREAM, PLUGIN = "vllm", "vllm_ascend"
OURS, ENGINE_TESTS = "engine", "tests/engine"
# What the conftest of upstream's tests imports.
TEST_REQUIREMENTS = ("tblib", "pytest-asyncio")
Results = dict[str, str]
"""By the id of a test: PASSED, SKIPPED or FAILED."""


@dataclass(frozen=True)
class Candidate:
    paths: Paths
    name: str
    """The name of the line, or "pin"."""
    lock: Path
    series: Path

    @property
    def folder(self) -> Path:
        return self.paths.build / "verify" / self.name


def verify(candidate: Candidate) -> str:
    """Verify a series, all of it, and return a report of a line for each setup."""
    with exclusive(candidate.folder / ".lock"):
        results = _run_all(candidate)
    engine = results.pop(OURS)
    failing = [
        f"{name}: {result} (our engine tests)"
        for name, result in engine.items()
        if result == FAILED
    ]
    if PASSED not in engine.values():
        failing.append("no engine test of ours passes")
    failing += upstream.newly_failing(results)
    if failing:
        raise ToolError(
            f"{candidate.folder / 'logs'}: expected no newly failing test, found "
            f"{len(failing)}: {'; '.join(failing)}; correct the patch or our files and "
            "verify again"
        )
    release = load_lock(candidate.lock).vllm.version
    return f"{candidate.name}, vllm {release}: nothing fails\n"


def _run_all(candidate: Candidate) -> dict[str, Results]:
    patched, plain = (
        make_checkout(candidate.paths, candidate.folder / name, candidate.lock, series)
        for name, series in (("patched", candidate.series), ("unpatched", None))
    )
    # One of our tests reads the plugin, which the reference wheel does not have.
    for line in vendor(patched, load_lock(patched.lock), [PLUGIN]):
        print(line, file=sys.stderr)
    wheels = [build_wheel(root, Choice(), root.dist) for root in (patched, plain)]
    setup = Setup(OURS, _python(patched, wheels[0]), patched.root)
    paths = sorted((patched.root / ENGINE_TESTS).rglob("test_*.py"))
    files = [path.relative_to(patched.root).as_posix() for path in paths]
    engine = _run(candidate, setup, files)
    return {OURS: engine, **_upstream(candidate, patched, wheels)}


def _python(root: Paths, wheel: Path) -> Path:
    """Install a wheel in place of the other one; seconds after the first time."""
    python = make_env(root, wheel) / "bin" / "python"
    pip(python, "install", *TEST_REQUIREMENTS)
    return python


def _upstream(
    candidate: Candidate, root: Paths, wheels: Sequence[Path]
) -> Mapping[str, Results]:
    copy, hub = candidate.folder / "upstream", candidate.folder / "hub"
    tree = ensure_pristine(load_lock(candidate.lock).vllm, candidate.paths)
    upstream.copy_tests(tree, copy)
    upstream.write_hub(hub)
    variables = {"HF_HOME": str(hub), "PYTHONPATH": str(copy)}
    files = upstream.select(tree, load_series(candidate.series / UPSTREAM).paths)
    results = {}
    for name, wheel, plugins in (
        (upstream.OFF, wheels[0], ()),
        (upstream.ON, wheels[0], (upstream.SWITCH_ON,)),
        (upstream.PLAIN, wheels[1], ()),
    ):
        setup = Setup(name, _python(root, wheel), copy, plugins, variables)
        results[name] = _run(candidate, setup, files)
    return results


def _run(candidate: Candidate, setup: Setup, files: Sequence[str]) -> Results:
    results: Results = {}
    for number, file in enumerate(files, 1):
        start = time.monotonic()
        outcome = run_file(setup, file, candidate.folder / "logs")
        results |= outcome
        line = f"{setup.name} {number}/{len(files)}, {file}: {count(outcome)}"
        seconds = time.monotonic() - start
        print(f"{line}, {seconds:.0f} s", file=sys.stderr, flush=True)
    return results
