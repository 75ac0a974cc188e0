"""Run mypy on our files and the patched ones, in a tree of upstream."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from balance_tools.contract.recorder import FILE_VARIABLE
from balance_tools.contract.uses import Ours
from balance_tools.errors import ToolError
from balance_tools.run import capture

CONFIGURATION = """\
[mypy]
python_version = 3.11
plugins = balance_tools.contract.recorder
# Upstream's requirements are not installed where the tools are; its own mistakes are
# not ours.
ignore_missing_imports = True
follow_imports = silent
check_untyped_defs = True
namespace_packages = True
explicit_package_bases = True
show_error_codes = True
"""
_CRASHED = 2  # mypy's exit status when it could not check
_LINE = re.compile(r"\bline \d+")


@dataclass(frozen=True, order=True)
class Finding:
    """Something that is wrong with code of ours on a release."""

    file: str
    """Of ours, or the patched one; "" for a Relies-On line."""
    line: int
    """The line; 0 for a Relies-On line."""
    text: str
    """What is wrong, for people."""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.file else self.text

    @property
    def without_place(self) -> tuple[str, str]:
        """The same on any line."""
        return self.file, _LINE.sub("line", self.text)


@dataclass(frozen=True)
class Checked:
    """What a run of mypy found; `uses` are file, line and dotted name."""

    errors: tuple[Finding, ...]
    uses: tuple[tuple[str, int, str], ...]


def type_check(root: Path, ours: Ours) -> Checked:
    """Type-check what is ours in a tree, and write down what it uses of the rest.

    Raises:
        ToolError: mypy did not get to the end.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        configuration, uses = folder / "mypy.ini", folder / "uses"
        configuration.write_text(CONFIGURATION)
        uses.touch()
        command = [sys.executable, "-m", "mypy", "--config-file", str(configuration)]
        command += ["--cache-dir", os.devnull, "--no-error-summary", "--output=json"]
        tools = str(Path(__file__).resolve().parents[2])
        environment = {**os.environ, "PYTHONPATH": tools, FILE_VARIABLE: str(uses)}
        command += [*ours.files, *ours.hooks]
        run = capture(command, cwd=root, env=environment)
        said = [line for line in run.text.splitlines() if line.startswith("{")]
        if run.status >= _CRASHED or (run.status and not said):
            raise ToolError(
                f"{root}: expected mypy to check our files, found that it "
                f"stopped with {run.status}: {run.tail}; is this tree whole?"
            )
        recorded = [line.split("\t") for line in uses.read_text().splitlines()]
    errors = sorted(
        Finding(one["file"], one["line"], one["message"])
        for one in map(json.loads, said)
        if one["severity"] == "error"
    )
    found = {(file, int(line), dotted) for file, line, dotted in recorded}
    if not found:
        raise ToolError(
            f"{root}: expected mypy to see names of vllm in our files, found none; "
            "this is a defect of balance_tools.contract"
        )
    return Checked(tuple(errors), tuple(sorted(found)))
