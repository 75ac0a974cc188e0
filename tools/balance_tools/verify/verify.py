"""Build the rebased tree and run its tests: ours, and upstream's for what we touch."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from balance_tools.distribution import Choice
from balance_tools.environment.reference import make_env, pip
from balance_tools.errors import ToolError
from balance_tools.files import exclusive, sha256_of, write_atomically
from balance_tools.fingerprint import series_sha256
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.series.apply import load_series
from balance_tools.text import table
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine
from balance_tools.vendoring.checkout import make_checkout
from balance_tools.vendoring.vendor import vendor
from balance_tools.verify import upstream_tests as upstream
from balance_tools.verify.pytest_file import (
    FAILED,
    Setup,
    count,
    run_file,
)
from balance_tools.wheel.build import build_wheel

UPSTREAM, PLUGIN = "vllm", "vllm_ascend"
ENGINE_TESTS = "tests/engine"
# What the conftest of upstream's tests imports.
TEST_REQUIREMENTS = ("tblib", "pytest-asyncio")
Results = dict[str, str]
"""Id of a test to what came of it."""


@dataclass(frozen=True)
class Entry:
    """A test file that was run: what came of its tests, and how long it took."""

    name: str
    results: dict[str, str]
    seconds: float


def once(folder: Path, name: str, inputs: str, run: Callable[[], Results]) -> Entry:
    """Return what `run` gives; do it only if `inputs` are not those in `folder`."""
    file = folder / f"{name}.json"
    if file.is_file():
        known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        if known.pop("inputs") == inputs:
            return Entry(**known)
    start = time.monotonic()
    entry = Entry(name, run(), round(time.monotonic() - start, 1))
    text = json.dumps({"inputs": inputs, **asdict(entry)}, indent=1)
    write_atomically(file, text + "\n")
    return entry


def markdown(label: str, entries: Sequence[Entry], failing: Sequence[str]) -> str:
    """Return a table with a row for each way to run tests, and what fails."""
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        groups.setdefault(entry.name.split("/")[0], []).append(entry)
    rows = []
    for name, those in groups.items():
        results = {k: v for entry in those for k, v in entry.results.items()}
        seconds = sum(entry.seconds for entry in those)
        rows.append((name, len(those), count(results), f"{seconds:.0f}"))
    lines = [f"# Verification on {label}", ""]
    lines += table(("tests", "files", "results", "seconds"), rows)
    lines += ["", f"Newly failing: {len(failing)}.", ""]
    return "\n".join([*lines, *(f"- {one}" for one in failing)]) + "\n"


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
    """Verify a series and return the report; what ran before on the same is not run.

    Raises:
        ToolError: a test that passes without the patches fails with them, or one of
            our engine tests fails. Then verify.md in build/verify/NAME says which.
    """
    with exclusive(bench.folder / ".lock"):
        entries, failing = _run_all(bench)
    label = f"vllm {load_lock(bench.lock).vllm.version}"
    report, text = bench.folder / "verify.md", markdown(label, entries, failing)
    report.write_text(text, encoding="utf-8")
    if failing:
        raise ToolError(
            f"{report}: expected no newly failing test, found {len(failing)}, first "
            f"{failing[0]}; correct the patch or our files and verify again"
        )
    return text


def _run_all(bench: Bench) -> tuple[list[Entry], list[str]]:
    """Run every test; return what came of each file, and the tests that fail."""
    patched, plain = (
        make_checkout(bench.paths, bench.folder / name, bench.lock, series)
        for name, series in (("patched", bench.series), ("unpatched", None))
    )
    # One of our tests reads the plugin, which the reference wheel does not have.
    for line in vendor(patched, load_lock(patched.lock), [PLUGIN]):
        print(line, file=sys.stderr)
    wheels = [build_wheel(root, Choice(), root.dist) for root in (patched, plain)]
    ours = Setup("engine", _python(patched, wheels[0]), patched.root)
    found = sorted((patched.root / ENGINE_TESTS).rglob("test_*.py"))
    files = [path.relative_to(patched.root).as_posix() for path in found]
    made_of = sha256_of(wheels[0]) + series_sha256(patched.root, PLUGIN)
    tests = _run(bench, ours, files, made_of)
    failing = [
        f"{name}: {result} (our engine tests)"
        for entry in tests
        for name, result in entry.results.items()
        if result == FAILED
    ]
    theirs = list(_upstream(bench, patched, wheels))
    names = (upstream.PLAIN, upstream.OFF, upstream.ON)
    results: dict[str, dict[str, str]] = {name: {} for name in names}
    for entry in theirs:
        results[entry.name.split("/")[0]].update(entry.results)
    failing += upstream.newly_failing(results)
    return [*tests, *theirs], failing


def _python(root: Paths, wheel: Path) -> Path:
    """Install a wheel in place of the other one; seconds after the first time."""
    python = make_env(root, wheel) / "bin" / "python"
    pip(python, "install", *TEST_REQUIREMENTS)
    return python


def _upstream(bench: Bench, root: Paths, wheels: Sequence[Path]) -> Iterator[Entry]:
    """Run upstream's tests of the touched modules on both wheels."""
    copy, hub = bench.folder / "upstream", bench.folder / "hub"
    tree = ensure_pristine(load_lock(bench.lock).vllm, bench.paths)
    upstream.copy_tests(tree, copy)
    upstream.write_hub(hub)
    variables = {"HF_HOME": str(hub), "PYTHONPATH": str(copy)}
    touched = load_series(bench.series / UPSTREAM).paths
    files = upstream.select(tree, touched)
    for name, wheel, plugins in (
        (upstream.OFF, wheels[0], ()),
        (upstream.ON, wheels[0], (upstream.SWITCH_ON,)),
        (upstream.PLAIN, wheels[1], ()),
    ):
        setup = Setup(name, _python(root, wheel), copy, plugins, variables)
        yield from _run(bench, setup, files, sha256_of(wheel))


def _run(bench: Bench, setup: Setup, files: Sequence[str], made_of: str) -> list[Entry]:
    """Run test files one after the other and say how each went."""
    entries = []
    title = f"{setup.name}: {len(files)} test files"
    with progress(title, len(files), "file") as report:
        for done, file in enumerate(files, 1):
            inputs = f"{made_of} {_file_hash(setup, file)}"
            run = partial(run_file, setup, file, bench.folder / "logs")
            entry = once(bench.folder / "stages", f"{setup.name}/{file}", inputs, run)
            entries.append(entry)
            report(done)
            said = f"{file}: {count(entry.results)}, {entry.seconds:.0f} s"
            print(said, file=sys.stderr, flush=True)
    return entries


def _file_hash(setup: Setup, file: str) -> str:
    """Hash a test file, the helpers that it may use and the settings of pytest."""
    digest = hashlib.sha256(",".join(setup.plugins).encode())
    path = setup.root / file
    helpers = set(path.parent.glob("*.py")) - set(path.parent.glob("test_*.py"))
    for other in ("pyproject.toml", "tests/engine/vllm_server.py"):
        helpers |= set(setup.root.glob(other))
    for one in (path, *sorted(helpers)):
        digest.update(one.read_bytes())
    return digest.hexdigest()
