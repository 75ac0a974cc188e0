"""Check that the patch series keep the project's rules for patches."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.series.apply import (
    SERIES,
    Series,
    export_series,
    load_series,
    patched_steps,
)
from balance_tools.series.patchfile import ADDED, REMOVED, Patch
from balance_tools.text import parse_module
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine

Limits = Mapping[str, int]
"""By ADDED and REMOVED: the most lines that a series may add and remove."""

LIMITS: dict[str, Limits] = {
    "vllm": {ADDED: 95, REMOVED: 0},
    "vllm_ascend": {REMOVED: 0},
}
SECURITY = "security-"
"""How the names of patches begin that fix advisories: a series of their own, in which
the lines that they add are not limited."""
REQUIRED = ("Description", "Origin", "Forwarded", "Last-Update", "Removal-Plan")


def lint_files(series: Series) -> Iterator[str]:
    listed = {patch.name for patch in series.patches} | {SERIES}
    directory = series.directory
    for path in sorted(directory.iterdir()) if directory.is_dir() else ():
        if path.name not in listed:
            yield f"{path}: not in {directory / SERIES}; list the patch or remove it"
    for patch in series.patches:
        if not re.fullmatch(r"[a-z][a-z-]*\.patch", patch.name):
            yield (
                f"{directory / patch.name}: expected a name of small letters and "
                "hyphens that ends in .patch; order lives in the series file alone"
            )


def lint_patch(patch: Patch, where: str) -> Iterator[str]:
    header = patch.header
    for name in REQUIRED:
        if not header.get(name):
            yield f"{where}: expected the field {name}; write it into the header"
    if header.get("Relies-On") is None:
        yield (
            f"{where}: expected the field Relies-On; name the upstream symbols that "
            "the patch needs but does not touch, one a line (or leave it empty)"
        )
    if not patch.files:
        yield f"{where}: expected at least one changed file, found none"
    for path, tag, line in patch.changes:
        text = line.removesuffix(b"\n")
        if tag == ADDED and text != text.rstrip():
            yield (
                f"{where}: {path}: an added line ends in white space or CR: "
                f"{text.decode()!r}"
            )


def lint_limits(series: Series, limits: Limits) -> Iterator[str]:
    for tag, limit in limits.items():
        free = SECURITY if tag == ADDED else ()
        count = sum(p.count(tag) for p in series.patches if not p.name.startswith(free))
        if count > limit:
            verb = "adds" if tag == ADDED else "removes"
            yield (
                f"{series.directory}: {verb} {count} lines, at most {limit} are "
                "allowed; move logic into files of ours"
            )


def lint_in_place(series: Series, tree: Path) -> Iterator[str]:
    for patch, _, after in patched_steps(series, tree):
        where = series.directory / patch.name
        for file in patch.files:
            try:
                parse_module(after[file.path], file.path)
            except ToolError as error:
                yield f"{where}: {error}"
    for name, canonical in export_series(series, tree).items():
        if canonical != (series.directory / name).read_bytes():
            yield (
                f"{series.directory / name}: not as quilt would write it; refresh it "
                "with QUILTRC=tools/quiltrc quilt refresh"
            )


def lint_series(series: Series, limits: Limits, tree: Path) -> list[str]:
    problems = [*lint_files(series), *lint_limits(series, limits)]
    for patch in series.patches:
        problems += lint_patch(patch, str(series.directory / patch.name))
    return [*problems, *lint_in_place(series, tree)]


def run(args: argparse.Namespace) -> int:
    paths = Paths.find()
    lock = load_lock(paths.lock)
    problems: list[str] = []
    for name, limits in LIMITS.items():
        series = load_series(paths.patches(name))
        tree = ensure_pristine(lock.packages[name], paths)
        problems += lint_series(series, limits, tree)
        added = sum(patch.count(ADDED) for patch in series.patches)
        removed = sum(patch.count(REMOVED) for patch in series.patches)
        print(f"{name}: {len(series.patches)} patches, +{added} -{removed} lines")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0
