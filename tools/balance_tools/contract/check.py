"""Compare what our files and hooks use with what a release of upstream has."""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from balance_tools.contract.used_words import Ours, Use
from balance_tools.drift.symbols import Modules
from balance_tools.errors import ToolError
from balance_tools.run import capture
from balance_tools.series.patchfile import Patch

# Upstream's requirements are not installed where the tools are; its own mistakes are
# not ours.
CONFIGURATION = """\
[mypy]
python_version = 3.11
ignore_missing_imports = True
follow_imports = silent
check_untyped_defs = True
namespace_packages = True
explicit_package_bases = True
show_error_codes = True

[mypy-vllm.*]
ignore_missing_imports = False
"""
_CRASHED = 2  # mypy's exit status when it could not check
_LINE = re.compile(r"\bline \d+")


@dataclass(frozen=True, order=True)
class Finding:
    """Something that is wrong with code of ours on a release."""

    file: str
    """Of ours, or the patched one; "" for a Relies-On line."""
    line: int
    """0 for a Relies-On line."""
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.text}" if self.file else self.text


def missing(uses: Iterable[Use], words: frozenset[str]) -> list[Finding]:
    """Return the uses, found on the pin's tree, whose names the new one has not."""
    found = []
    for use in uses:
        if not words & {*use.names}:
            gone, many = " and ".join(use.names), len(use.names) > 1
            text = f"none is left of {gone}" if many else f"{gone} is gone"
            found.append(Finding(use.file, use.line, text))
    return sorted(found)


def type_check(root: Path, ours: Ours) -> tuple[Finding, ...]:
    """Run mypy on the files of a tree that are ours, or hold lines of ours.

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


def new_errors(
    ours: Ours, old: Iterable[Finding], new: Iterable[Finding]
) -> list[Finding]:
    """Return what the type checker finds in code of ours on the target alone.

    The old tree's findings do not count, on whatever line: what is loose in our own
    types is `make lint`'s business.
    """

    def without_place(error: Finding) -> tuple[str, str]:
        return error.file, _LINE.sub("line", error.text)

    known, found = Counter(map(without_place, old)), []
    for error in new:
        if ours.has(error.file, error.line):
            known[without_place(error)] -= 1
            if known[without_place(error)] < 0:
                found.append(error)
    return found


def vanished_symbols(patches: Iterable[Patch], new: Modules) -> list[Finding]:
    """Return the Relies-On lines of which no symbol is left."""
    return [
        Finding("", 0, f"{patch.name}: Relies-On {' | '.join(symbols)} is gone")
        for patch in patches
        for symbols in patch.header.relies_on
        if not any(map(new.find, symbols))
    ]
