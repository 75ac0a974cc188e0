"""One requirement list from the lists of several upstreams.

The specifiers of two lines about one package are joined, so a version must satisfy
both. Where none can, the build stops and names both sides.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from balance_tools.distribution import SETTINGS_NAME
from balance_tools.errors import ToolError

REQUIREMENT_FILES = {
    "vllm": "requirements/common.txt",
    "vllm_ascend": "requirements.txt",
}
"""Vendored package to the list, inside its sdist, of what it needs at run time."""


@dataclass(frozen=True)
class Sourced:
    source: str
    requirement: Requirement

    @property
    def name(self) -> str:
        return canonicalize_name(self.requirement.name)


def read_requirements(path: Path, source: str) -> list[Sourced]:
    """Read a requirements file of plain lines, without options such as `-r`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    stripped = (line.partition("#")[0].strip() for line in lines)
    return [parse_requirement(line, source) for line in stripped if line]


def parse_requirement(line: str, source: str) -> Sourced:
    try:
        return Sourced(source, Requirement(line))
    except InvalidRequirement as error:
        raise ToolError(
            f"{source}: expected a requirement, found {line!r} ({error}); the tools "
            "read plain lines only, so teach them this one"
        ) from error


def reconcile(requirements: Iterable[Sourced], drops: Iterable[str]) -> list[str]:
    groups: dict[str, list[Sourced]] = {}
    for sourced in requirements:
        groups.setdefault(sourced.name, []).append(sourced)
    dropped: set[str] = {canonicalize_name(name) for name in drops}
    if idle := dropped - groups.keys():
        raise ToolError(
            f"{SETTINGS_NAME}: expected the drop of {min(idle)!r} to change a list of "
            "an upstream, found that it does not; remove that entry"
        )
    lines: list[str] = []
    for name, group in sorted(groups.items()):
        if name in dropped:
            continue
        joined = SpecifierSet()
        for sourced in group:
            joined &= sourced.requirement.specifier
        if joined.is_unsatisfiable():
            sides = " against ".join(f"'{w.requirement}' of {w.source}" for w in group)
            raise ToolError(
                f"{name}: expected one version that pleases every upstream, found "
                f"{sides}; take releases that agree, or teach "
                "tools/balance_tools/wheel which one wins"
            )
        lines += _merge(group)
    return lines


def _merge(group: Sequence[Sourced]) -> list[str]:
    merged: dict[str, Requirement] = {}
    for sourced in group:
        marker = sourced.requirement.marker
        line = merged.setdefault(str(marker or ""), Requirement(sourced.name))
        line.marker = marker
        line.extras |= sourced.requirement.extras
        line.specifier &= sourced.requirement.specifier
    return [str(merged[marker]) for marker in sorted(merged)]
