"""One requirement list from the lists of several upstreams.

Two lines about one package are both kept in force: their specifiers are joined, so a
version must please both. Where none can, the build stops and names both sides.
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
class Wanted:
    """One line of one list."""

    source: str
    """Where it stands, for error messages: `vllm requirements/common.txt`."""
    requirement: Requirement

    @property
    def name(self) -> str:
        """The normalised name of the package that is required."""
        return canonicalize_name(self.requirement.name)


def read_requirements(path: Path, source: str) -> list[Wanted]:
    """Read a requirements file of plain lines, without options such as `-r`."""
    lines = path.read_text(encoding="utf-8").splitlines()
    stripped = (line.partition("#")[0].strip() for line in lines)
    return [parse_requirement(line, source) for line in stripped if line]


def parse_requirement(line: str, source: str) -> Wanted:
    """Read one line of `source`."""
    try:
        return Wanted(source, Requirement(line))
    except InvalidRequirement as error:
        raise ToolError(
            f"{source}: expected a requirement, found {line!r} ({error}); the tools "
            "read plain lines only, so teach them this one"
        ) from error


def reconcile(wanted: Iterable[Wanted], drops: Iterable[str]) -> list[str]:
    """The one list, sorted, a line for each package and environment marker.

    Raises:
        ToolError: two upstreams contradict each other, or a drop of distribution.toml
            is not needed.
    """
    groups: dict[str, list[Wanted]] = {}
    for want in wanted:
        groups.setdefault(want.name, []).append(want)
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
        if _joined(group).is_unsatisfiable():
            raise ToolError(_contradiction(name, group))
        lines += _merge(group)
    return lines


def _joined(group: Sequence[Wanted]) -> SpecifierSet:
    joined = SpecifierSet()
    for want in group:
        joined &= want.requirement.specifier
    return joined


def _merge(group: Sequence[Wanted]) -> list[str]:
    """One line for each marker."""
    by_marker: dict[str, list[Wanted]] = {}
    for want in group:
        by_marker.setdefault(str(want.requirement.marker or ""), []).append(want)
    lines: list[str] = []
    for marker, wants in sorted(by_marker.items()):
        name = wants[0].name
        extras = sorted({extra for want in wants for extra in want.requirement.extras})
        lines.append(
            name
            + (f"[{','.join(extras)}]" if extras else "")
            + str(_joined(wants))
            + (f"; {marker}" if marker else "")
        )
    return lines


def _contradiction(name: str, group: Sequence[Wanted]) -> str:
    sides = " against ".join(
        f"{str(want.requirement)!r} of {want.source}" for want in group
    )
    return (
        f"{name}: expected one version that pleases every upstream, found {sides}; "
        "take releases that agree, or teach tools/balance_tools/wheel which one wins"
    )
