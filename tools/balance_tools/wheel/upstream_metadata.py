"""What an upstream declares about itself, read from the metadata in its sdist.

An sdist made by setuptools has an egg-info folder: the computed form of whatever
pyproject.toml or setup.py say, so neither is run.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import Distribution, PackageMetadata
from pathlib import Path

from balance_tools.distribution import EntryPoints


@dataclass(frozen=True)
class UpstreamMetadata:
    """The declarations of one upstream release."""

    core: PackageMetadata
    """Core metadata: `core["Summary"]`, `core.get_all("Classifier")`."""
    entry_points: EntryPoints
    extras: dict[str, list[str]]
    """Extra (`audio`, or `audio:<marker>`) to requirements, as setuptools takes it."""

    @property
    def name(self) -> str:
        """The distribution's name as upstream spells it."""
        return self.core["Name"]

    @property
    def version(self) -> str:
        """The public version."""
        return self.core["Version"]

    def values(self, header: str) -> list[str]:
        """Every value of a header that may stand many times."""
        return [str(value) for value in self.core.get_all(header, [])]


def read_upstream_metadata(pristine: Path, package: str) -> UpstreamMetadata:
    """Read the metadata of the extracted sdist `pristine` of `package`."""
    found = Distribution.at(pristine / f"{package}.egg-info")
    entry_points: dict[str, dict[str, str]] = {}
    for point in found.entry_points:
        entry_points.setdefault(point.group, {})[point.name] = point.value
    requires = found.read_text("requires.txt") or ""
    return UpstreamMetadata(found.metadata, entry_points, _extras(requires))


def _extras(text: str) -> dict[str, list[str]]:
    """The named sections of a requires.txt; what stands before them is not an extra."""
    extras: dict[str, list[str]] = {}
    current: list[str] = []
    for line in map(str.strip, text.splitlines()):
        if line.startswith("["):
            current = []
            if not line.startswith("[:"):
                extras[line.strip("[]")] = current
        elif line:
            current.append(line)
    return extras
