"""Run mypy on our files and the patched ones, in a tree of upstream."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from balance_tools.contract.uses import Ours
from balance_tools.errors import ToolError
from balance_tools.run import capture

CONFIGURATION = """\
[mypy]
python_version = 3.11
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


def type_check(root: Path, ours: Ours) -> tuple[Finding, ...]:
    """Type-check the files of a tree that are ours, or hold lines of ours.

    Raises:
        ToolError: mypy did not get to the end.
    """
    with tempfile.TemporaryDirectory() as name:
        configuration = Path(name) / "mypy.ini"
        configuration.write_text(CONFIGURATION)
        command = [sys.executable, "-m", "mypy", "--config-file", str(configuration)]
        command += ["--cache-dir", os.devnull, "--no-error-summary", "--output=json"]
        run = capture([*command, *ours.files, *ours.hooks], cwd=root)
    said = [line for line in run.text.splitlines() if line.startswith("{")]
    if run.status >= _CRASHED or (run.status and not said):
        raise ToolError(
            f"{root}: expected mypy to check our files, found that it "
            f"stopped with {run.status}: {run.tail}; is this tree whole?"
        )
    errors = [one for one in map(json.loads, said) if one["severity"] == "error"]
    return tuple(sorted(Finding(e["file"], e["line"], e["message"]) for e in errors))
