"""Run pytest on one file, in a process group of its own, and read its results."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from xml.etree import ElementTree

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
SECONDS_A_FILE = 900
SECONDS_TO_TIDY = 30


@dataclass(frozen=True)
class Setup:
    """One way to run tests."""

    name: str
    """For people and for the names of logs."""
    python: Path
    """Interpreter of the environment with the wheel."""
    root: Path
    """Folder to run in; test files are relative to it."""
    plugins: tuple[str, ...] = ()
    """Modules for pytest to load."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables in addition to ours."""


def run_file(
    setup: Setup, file: str, logs: Path, seconds: float = SECONDS_A_FILE
) -> dict[str, str]:
    """Return test id to PASSED, SKIPPED or FAILED; output goes to a file in `logs`.

    A file that does not end in time, or ends without a report, is one failed test.
    """
    logs.mkdir(parents=True, exist_ok=True)
    stem = file.removesuffix(".py").replace("/", "-")
    log = logs / f"{stem}.{setup.name.replace(', ', '-')}.log"
    xml = log.with_suffix(".xml")
    xml.unlink(missing_ok=True)
    command = [str(setup.python), "-m", "pytest", file, "-q", f"--junitxml={xml}"]
    # Beside the log, because a test that fails names files there, such as a server's.
    command += ["-p", "no:cacheprovider", f"--basetemp={log.with_suffix('.tmp')}"]
    command += [word for name in setup.plugins for word in ("-p", name)]
    # PYTHONSAFEPATH: the folder holds source trees, the wheel is what is tested.
    ours = {"HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            cwd=setup.root,
            env={**os.environ, **ours, **setup.environment},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return {f"{file}::(no end after {seconds:.0f} s)": FAILED}
    finally:
        _end(process)
    return read_junit(xml, file)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no process behind: pytest may tidy up first, servers of tests included."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(SECONDS_TO_TIDY)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def termination_interrupts() -> Iterator[None]:
    """Make SIGTERM (of `timeout`, of a CI) end the block as Ctrl-C does."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


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


def count(results: Mapping[str, str]) -> str:
    """Return how many results there are of each kind, as a person says it."""
    found = list(results.values())
    kinds = (PASSED, FAILED, SKIPPED)
    return ", ".join(f"{found.count(k)} {k}" for k in kinds if k in found) or "none"
