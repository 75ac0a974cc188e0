"""What an upstream declares about itself, read from the metadata in its sdist.

An sdist carries the standard PKG-INFO and, made by setuptools, an egg-info folder: the
already computed form of whatever pyproject.toml or setup.py say, so neither is run.
"""

from __future__ import annotations

import configparser
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path

from balance_tools.distribution import EntryPoints


@dataclass(frozen=True)
class UpstreamMetadata:
    """The declarations of one upstream release."""

    core: Message
    """Core metadata: `core["Summary"]`, `core.get_all("Classifier")`."""
    entry_points: EntryPoints
    extras: dict[str, list[str]]
    """Extra (`audio`, or `audio:<marker>`) to requirements, as setuptools takes it."""

    @property
    def name(self) -> str:
        """The distribution's name as upstream spells it."""
        return str(self.core["Name"])

    @property
    def version(self) -> str:
        """The public version."""
        return str(self.core["Version"])

    def values(self, header: str) -> list[str]:
        """Every value of a header that may stand many times."""
        return [str(value) for value in self.core.get_all(header, [])]


def read_upstream_metadata(pristine: Path, package: str) -> UpstreamMetadata:
    """Read the metadata of the extracted sdist `pristine` of `package`."""
    egg_info = pristine / f"{package}.egg-info"
    files = (pristine / "PKG-INFO", egg_info / "entry_points.txt")
    core, entry_points, requires = (
        path.read_text(encoding="utf-8") for path in (*files, egg_info / "requires.txt")
    )
    return UpstreamMetadata(
        core=Parser().parsestr(core),
        entry_points=parse_entry_points(entry_points),
        extras=_extras(requires),
    )


def parse_entry_points(text: str) -> EntryPoints:
    """Read the text of an entry_points.txt."""
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment]  # names are case-sensitive
    parser.read_string(text)
    return {group: dict(parser[group]) for group in parser.sections()}


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
