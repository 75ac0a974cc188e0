"""Upstream's metadata, read from its sdist.

An sdist made by setuptools has an egg-info folder: the computed form of whatever
pyproject.toml or setup.py say, so neither is run.
"""

from __future__ import annotations

from importlib.metadata import Distribution
from pathlib import Path

from balance_tools.distribution import EntryPoints


def upstream_metadata(pristine: Path, package: str) -> Distribution:
    return Distribution.at(pristine / f"{package}.egg-info")


def values_of(upstream: Distribution, header: str) -> list[str]:
    return [str(value) for value in upstream.metadata.get_all(header, [])]


def entry_points_of(upstream: Distribution) -> EntryPoints:
    groups: dict[str, dict[str, str]] = {}
    for point in upstream.entry_points:
        groups.setdefault(point.group, {})[point.name] = point.value
    return groups


def extras_of(upstream: Distribution) -> dict[str, list[str]]:
    """Extra (`audio`, or `audio:<marker>`) to requirements, as setuptools takes it.

    They are the named sections of requires.txt; what stands before is not an extra.
    """
    extras: dict[str, list[str]] = {}
    current: list[str] = []
    for line in map(str.strip, (upstream.read_text("requires.txt") or "").splitlines()):
        if line.startswith("["):
            current = []
            if not line.startswith("[:"):
                extras[line.strip("[]")] = current
        elif line:
            current.append(line)
    return extras
