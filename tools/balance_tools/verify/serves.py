"""Serve a tiny model with the wheel of a release, once with each policy."""

from __future__ import annotations

import sys
from pathlib import Path

from balance_tools.environment.layered import layered_environment
from balance_tools.files import exclusive, remove_tree, sha256_of
from balance_tools.verify.pytest_file import (
    PASSED,
    Setup,
    run_file,
    termination_interrupts,
)
from balance_tools.verify.stages import Data
from balance_tools.verify.verify import Bench, file_hash, patched_root, wheel_stage

TEST = "tests/engine/test_each_policy.py"
SECONDS = 1800
"""How long the four servers may take on a busy machine."""


def serves(bench: Bench, base: Path) -> tuple[list[str], float]:
    """Build the wheel of a release, install it with its requirements, and serve.

    What was done before with equal inputs is not done again. The environment is
    deleted when the tests have run.

    Args:
        bench: The release.
        base: Interpreter of an environment that has most of the requirements.

    Returns:
        The tests that did not pass (a run without tests is one), and the seconds.

    Raises:
        ToolError: the wheel cannot be built or installed.
    """
    with exclusive(bench.folder / ".lock"), termination_interrupts():
        root = patched_root(bench)
        wheel = Path(wheel_stage(bench, root).data["path"])
        setup = Setup("serves", root.env / "serves" / "bin" / "python", root.root)

        def install_and_run() -> Data:
            folder = root.env / "serves"
            layered_environment(folder, wheel, base, requirements=True)
            print(f"{bench.label}: serving with each policy", file=sys.stderr)
            try:
                return run_file(setup, TEST, bench.folder / "logs", SECONDS)
            finally:
                remove_tree(folder)

        inputs = [sha256_of(wheel), str(base), file_hash(setup, TEST)]
        tests = bench.ledger.once(f"serves/{TEST}", inputs, install_and_run)
        failed = [name for name, result in tests.data.items() if result != PASSED]
        return failed or ([] if tests.data else [f"{TEST}: no test ran"]), tests.seconds
