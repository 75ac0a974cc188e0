"""Serve a tiny model with the wheel of a release, once with each policy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from balance_tools.files import exclusive, remove_tree, sha256_of
from balance_tools.serving.env import pip
from balance_tools.upstream.fetch import default_index
from balance_tools.upstream.resolve import final_releases
from balance_tools.verify.environments import layered_environment
from balance_tools.verify.ledger import Data, Entry
from balance_tools.verify.newest import lines_with, requirements_of, too_new
from balance_tools.verify.pytest_file import (
    PASSED,
    Setup,
    run_file,
    termination_interrupts,
)
from balance_tools.verify.verify import Bench, file_hash, patched_root, wheel_stage

TEST = "tests/engine/test_each_policy.py"
SECONDS = 1800
"""How long the four servers may take on a busy machine."""


@dataclass(frozen=True)
class Served:
    """What serving a model showed."""

    tests: Entry
    """The result of each test."""
    instead: str
    """What was taken instead of a requirement that the index cannot meet, in words; ""
    if nothing was."""

    @property
    def failed(self) -> list[str]:
        """The tests that did not pass; a run without tests is one."""
        results = self.tests.data
        failed = [name for name, result in results.items() if result != PASSED]
        return failed or ([] if results else [f"{TEST}: no test ran"])


def serves(bench: Bench, base: Path, newest: Sequence[str] = ()) -> Served:
    """Build the wheel of a release, install it with its requirements, and serve.

    What was done before with equal inputs is not done again. The environment is
    deleted when the tests have run.

    Args:
        bench: The release; `name` of its release is the folder below build/verify.
        base: Interpreter of an environment that has most of the requirements.
        newest: Projects of which the newest release is taken where a newer one is
            required than the index has.

    Raises:
        ToolError: the wheel cannot be built or installed.
    """
    with exclusive(bench.folder / ".lock"), termination_interrupts():
        root = patched_root(bench)
        wheel = Path(wheel_stage(bench, root).data["path"])
        wanted = requirements_of(wheel)
        instead = (
            too_new(wanted, newest, partial(final_releases, default_index()))
            if newest
            else []
        )
        lines = lines_with(wanted, instead) if instead else []
        setup = Setup("serves", root.env / "serves" / "bin" / "python", root.root)

        def install_and_run() -> Data:
            folder = root.env / "serves"
            python = layered_environment(folder, wheel, base, requirements=not lines)
            if lines:
                pip(python, "install", *lines)
            print(f"{bench.release.label}: serving with each policy", file=sys.stderr)
            try:
                return run_file(setup, TEST, bench.folder / "logs", SECONDS)
            finally:
                remove_tree(folder)

        inputs = [sha256_of(wheel), str(base), *lines, file_hash(setup, TEST)]
        tests = bench.ledger.once(f"serves/{TEST}", inputs, install_and_run)
        return Served(tests, "; ".join(map(str, instead)))
