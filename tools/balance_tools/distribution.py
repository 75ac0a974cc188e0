"""The settings of distribution.toml, and the choice of one wheel.

The build reads the choice from one environment variable, which `make wheel` sets.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from balance_tools.errors import ToolError
from balance_tools.text import read_text

SETTINGS_NAME = "distribution.toml"
TARGETS = ("reference", "ascend")
PYTHONS = ("cp310", "cp311", "cp312")
ARCHES = ("x86_64", "aarch64")
KERNELS = ("prebuilt", "source")
VARIABLE = "VLLM_BALANCE_WHEEL"

EntryPoints = Mapping[str, Mapping[str, str]]
"""By group and name, the object, as in entry_points.txt."""


@dataclass(frozen=True)
class Choice:
    """Which wheel to build. Only `target` matters for the reference wheel."""

    target: str = "reference"
    python: str = "cp311"
    arch: str = "x86_64"
    kernels: str = "prebuilt"
    soc: str = ""
    """The chip that kernels from source are for; prebuilt ones have none to choose."""

    @property
    def name(self) -> str:
        if self.target == "reference":
            return self.target
        name = f"{self.target}-{self.python}-{self.arch}"
        return f"{name}-{self.soc}" if self.from_source else name

    @property
    def from_source(self) -> bool:
        return self.target == "ascend" and self.kernels == "source"

    def environment(self) -> dict[str, str]:
        return {VARIABLE: json.dumps(asdict(self))}


def choice_from(environment: Mapping[str, str]) -> Choice:
    return Choice(**json.loads(environment.get(VARIABLE, "{}")))


@dataclass(frozen=True)
class Target:
    name: str
    label: str
    """The end of the local version: `+balance.1.<label>`."""
    packages: tuple[str, ...]
    """Vendored packages in it; the first one names the version."""
    requires: tuple[str, ...]
    license: str
    entry_points: EntryPoints
    """Ours: the common ones and those of this target."""
    excludes: tuple[str, ...] = ()
    device_type: str | None = None
    drops: tuple[str, ...] = ()
    """Requirements of upstreams that the wheel does not have."""


@dataclass(frozen=True)
class Settings:
    name: str
    revision: int
    summary: str
    guard_entry_points: EntryPoints
    """The entry points of the dist-info that no stock package hides."""
    targets: Mapping[str, Target]

    def version(self, upstream: str) -> str:
        """The version of a release, without the label of a target: `…+balance.1`."""
        return f"{upstream}+balance.{self.revision}"


def load_settings(path: Path) -> Settings:
    try:
        data: dict[str, Any] = tomlkit.parse(read_text(path)).unwrap()
        targets = {
            name: _target(name, entry, data["entry-points"])
            for name, entry in data["targets"].items()
        }
        guard = data["guard-entry-points"]
        return Settings(
            **data["distribution"], guard_entry_points=guard, targets=targets
        )
    except TOMLKitError as error:
        raise ToolError(
            f"{path}: expected TOML, found {error}; correct that line"
        ) from error
    except (KeyError, TypeError) as error:
        raise ToolError(
            f"{path}: expected its entries, found that one is wrong or missing, "
            f"{error}; restore it from git"
        ) from error


def _target(name: str, entry: dict[str, Any], common: EntryPoints) -> Target:
    return Target(
        name=name,
        label=entry["label"],
        packages=tuple(entry["packages"]),
        requires=tuple(entry["requires"]),
        license=entry["license"],
        entry_points=merge_entry_points(common, entry.get("entry-points", {})),
        excludes=tuple(entry.get("excludes", ())),
        device_type=entry.get("device-type"),
        drops=tuple(drop["name"] for drop in entry.get("drop", ())),
    )


def merge_entry_points(*parts: EntryPoints) -> EntryPoints:
    merged: dict[str, dict[str, str]] = {}
    for part in parts:
        for group, entries in part.items():
            merged.setdefault(group, {}).update(entries)
    return merged
