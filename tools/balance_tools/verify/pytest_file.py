"""Run pytest on one file, and read its results."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

PASSED, SKIPPED, FAILED = "passed", "skipped", "failed"
SECONDS_A_FILE = 900


@dataclass(frozen=True)
class Setup:
    name: str
    python: Path
    root: Path
    """Folder to run in; test files are relative to it."""
    plugins: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


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
    variables = {"HF_HUB_OFFLINE": "1", "PYTHONSAFEPATH": "1"}
    try:
        with log.open("w") as output:
            subprocess.run(
                command,
                cwd=setup.root,
                env={**os.environ, **variables, **setup.environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=seconds,
                check=False,
            )
    except subprocess.TimeoutExpired:
        return {f"{file}::(no end after {seconds:.0f} s)": FAILED}
    return read_junit(xml, file)


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
    outcomes = list(results.values())
    kinds = (PASSED, FAILED, SKIPPED)
    return (
        ", ".join(f"{outcomes.count(k)} {k}" for k in kinds if k in outcomes) or "none"
    )
