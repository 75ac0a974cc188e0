"""What is built: the settings of distribution.toml and the choice of one wheel.

The choice comes from five environment variables, the only ones the build reads:

VLLM_BALANCE_TARGET   `reference` (default) or `ascend`
VLLM_BALANCE_PYTHON   `cp310`, `cp311` (default) or `cp312`; target ascend only
VLLM_BALANCE_ARCH     `x86_64` or `aarch64`, default this machine's; target ascend only
VLLM_BALANCE_KERNELS  `prebuilt` (default) or `source`; target ascend only
VLLM_BALANCE_SOC      the chip, e.g. `ascend910b1`; kernels from source only
"""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError

from balance_tools.errors import ToolError

SETTINGS_NAME = "distribution.toml"
TARGETS = ("reference", "ascend")
PYTHONS = ("cp310", "cp311", "cp312")
ARCHES = ("x86_64", "aarch64")
KERNELS = ("prebuilt", "source")
VARIABLE_PREFIX = "VLLM_BALANCE_"

EntryPoints = Mapping[str, Mapping[str, str]]
"""Group to name to object reference, as in entry_points.txt."""


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
        """A short name that is fit for a folder: `ascend-cp311-aarch64`."""
        if self.target == "reference":
            return self.target
        name = f"{self.target}-{self.python}-{self.arch}"
        return f"{name}-{self.soc}" if self.from_source else name

    @property
    def from_source(self) -> bool:
        """Whether the kernels are compiled here, with CANN."""
        return self.target == "ascend" and self.kernels == "source"

    def environment(self) -> dict[str, str]:
        """The variables that make setup.py build this wheel."""
        return {
            VARIABLE_PREFIX + key.upper(): value for key, value in vars(self).items()
        }


def choice_from(environment: Mapping[str, str]) -> Choice:
    """Read the five variables, and refuse a value that means nothing."""
    allowed = {
        "target": TARGETS,
        "python": PYTHONS,
        "arch": ARCHES,
        "kernels": KERNELS,
    }
    values = {"arch": platform.machine() if platform.machine() in ARCHES else "x86_64"}
    for key, options in allowed.items():
        variable = VARIABLE_PREFIX + key.upper()
        if value := environment.get(variable):
            if value not in options:
                raise ToolError(
                    f"{variable}: expected one of {', '.join(options)}, found "
                    f"{value!r}; choose one of them"
                )
            values[key] = value
    choice = Choice(**values, soc=environment.get(f"{VARIABLE_PREFIX}SOC", ""))
    if choice.soc and not choice.from_source:
        raise ToolError(
            f"{VARIABLE_PREFIX}SOC: expected a chip only for an Ascend wheel with "
            f"kernels from source, found {choice.soc!r}; add KERNELS=source, or leave "
            "it out: the prebuilt kernels are for Atlas A2"
        )
    return choice


@dataclass(frozen=True)
class Target:
    """One kind of wheel."""

    name: str
    label: str
    """The end of the local version: `+balance.1.<label>`."""
    packages: tuple[str, ...]
    """Vendored packages in it; the first one names the version."""
    requires: tuple[str, ...]
    license: str
    """An SPDX licence expression."""
    entry_points: EntryPoints
    """Ours: the common ones and those of this target."""
    excludes: tuple[str, ...] = ()
    device_type: str | None = None
    drops: tuple[str, ...] = ()
    """Requirements of upstreams that the wheel does not have."""


@dataclass(frozen=True)
class Settings:
    """All of distribution.toml."""

    name: str
    revision: int
    summary: str
    guard_entry_points: EntryPoints
    """Those of the dist-info that is ours alone."""
    targets: Mapping[str, Target]

    def version(self, upstream: str) -> str:
        """The version of a release, without the label of a target: `…+balance.1`."""
        return f"{upstream}+balance.{self.revision}"

    def local_version(self, upstream: str, label: str) -> str:
        """The version of the patched `upstream` version: `0.23.0+balance.1.a2`."""
        return f"{self.version(upstream)}.{label}"


def load_settings(path: Path) -> Settings:
    """Read distribution.toml."""
    try:
        data: dict[str, Any] = tomlkit.parse(path.read_text(encoding="utf-8")).unwrap()
        return _settings(data)
    except TOMLKitError as error:
        raise ToolError(
            f"{path}: expected TOML, found {error}; correct that line"
        ) from error
    except KeyError as error:
        raise ToolError(
            f"{path}: expected an entry {error}, found none; restore it from git"
        ) from error


def _settings(data: dict[str, Any]) -> Settings:
    return Settings(
        name=data["distribution"]["name"],
        revision=data["distribution"]["revision"],
        summary=data["distribution"]["summary"],
        guard_entry_points=data["guard-entry-points"],
        targets={
            name: _target(name, entry, data["entry-points"])
            for name, entry in data["targets"].items()
        },
    )


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
    """Put groups together.

    Raises:
        ToolError: one name stands twice in a group.
    """
    merged: dict[str, dict[str, str]] = {}
    for part in parts:
        for group, entries in part.items():
            names = merged.setdefault(group, {})
            if twice := sorted(set(names) & set(entries)):
                raise ToolError(
                    f"{SETTINGS_NAME}: expected entry point {twice[0]!r} of {group} "
                    "once, found it twice; rename ours"
                )
            names.update(entries)
    return merged
