"""Serve a tiny model with the wheel of a release, once with each policy."""

from __future__ import annotations

import sys
from pathlib import Path

from balance_tools.files import exclusive, sha256_of
from balance_tools.verify.environments import layered_environment
from balance_tools.verify.ledger import Data, Entry
from balance_tools.verify.pytest_file import PASSED, Setup, run_file
from balance_tools.verify.verify import Bench, file_hash, patched_root, wheel_stage

TEST = "tests/engine/test_each_policy.py"
SECONDS = 1800
"""How long the four servers may take on a busy machine."""


def serves(bench: Bench, base: Path) -> Entry:
    """Build the wheel of a release, install it with its requirements, and serve.

    What was done before with equal inputs is not done again.

    Args:
        bench: The release; `name` of its release is the folder below build/verify.
        base: Interpreter of an environment that has most of the requirements.

    Returns:
        The result of each test; `tests_of` says whether all passed.
    """
    with exclusive(bench.folder / ".lock"):
        root = patched_root(bench)
        wheel = Path(wheel_stage(bench, root).data["path"])
        inputs = [sha256_of(wheel), str(base)]

        def install() -> Data:
            folder = root.env / "serves"
            python = layered_environment(folder, wheel, base, requirements=True)
            return {"path": str(python)}

        environment = bench.ledger.once("environment, serves", inputs, install)
        python = Path(environment.data["path"])
        setup = Setup("serves", python, root.root)
        print(f"{bench.release.label}: serving with each policy", file=sys.stderr)
        return bench.ledger.once(
            f"serves/{TEST}",
            [*inputs, file_hash(setup, TEST)],
            lambda: run_file(setup, TEST, bench.folder / "logs", SECONDS),
        )


def what_failed(stage: Entry) -> list[str]:
    """Return the tests that did not pass; a run without tests is one."""
    failed = [name for name, result in stage.data.items() if result != PASSED]
    return failed or ([] if stage.data else [f"{TEST}: no test ran"])
