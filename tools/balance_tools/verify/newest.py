"""Requirements of a wheel that are newer than anything on the index."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import PathDistribution
from pathlib import Path
from zipfile import Path as ZipPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from balance_tools.errors import ToolError


@dataclass(frozen=True)
class Instead:
    """A version that is taken although the wheel requires a newer one."""

    requirement: Requirement
    """Of the wheel."""
    version: Version
    """The newest final release on the index."""

    def __str__(self) -> str:
        wanted = self.requirement
        return (
            f"{wanted.name} {self.version} instead of {wanted.specifier}: the index "
            "has none newer"
        )


def requirements_of(wheel: Path) -> list[Requirement]:
    """Return what a wheel requires on this interpreter, without its extras."""
    (info,) = (
        path for path in ZipPath(wheel).iterdir() if _is_own(path.name, wheel.name)
    )
    lines = PathDistribution(info).requires or ()
    found = map(Requirement, lines)
    return [one for one in found if one.marker is None or one.marker.evaluate()]


def _is_own(folder: str, wheel: str) -> bool:
    name, version, *_ = wheel.split("-")
    return folder == f"{name}-{version}.dist-info"


def too_new(
    requirements: Iterable[Requirement],
    names: Sequence[str],
    releases: Callable[[str], Collection[Version]],
) -> list[Instead]:
    """Return the named requirements that no release on the index meets.

    Args:
        requirements: Of a wheel.
        names: Projects for which an older release may be taken; others are not looked
            up.
        releases: The final releases of a project that pip finds.

    Raises:
        ToolError: the index cannot be asked, or has no release at all.
    """
    allowed = {canonicalize_name(name) for name in names}
    found = []
    for wanted in requirements:
        if canonicalize_name(wanted.name) not in allowed:
            continue
        versions = releases(wanted.name)
        if not versions:
            raise ToolError(
                f"--newest {wanted.name}: expected a release on pip's configured "
                "sources, found none; correct the name"
            )
        if not any(map(wanted.specifier.contains, versions)):
            found.append(Instead(wanted, max(versions)))
    return found


def lines_with(
    requirements: Iterable[Requirement], instead: Sequence[Instead]
) -> list[str]:
    """Return the requirements as pip takes them, with what is taken instead."""
    taken = {one.requirement.name: one.version for one in instead}
    return [
        f"{one.name}=={taken[one.name]}"
        if one.name in taken
        # Its marker is true here, and the extras were left out.
        else f"{one.name}{_extras(one)}{one.specifier}"
        for one in requirements
    ]


def _extras(requirement: Requirement) -> str:
    return f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
