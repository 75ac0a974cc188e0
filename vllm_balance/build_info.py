"""The build record of the installed wheel, build.json."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

BUILD_RECORD = Path(__file__).with_name("build.json")
NOT_BUILT = (
    f"{Path(__file__).parent}: expected the build record of a wheel, found none, for "
    "this is a checkout or an editable install; build the wheel with `make wheel` and "
    "install it with pip"
)


@dataclass(frozen=True)
class BuildInfo:
    wheel: str
    distributions: Mapping[str, str]
    """Distributions in the wheel, by name, with the version of each."""
    upstreams: Mapping[str, str]
    target: str
    """`reference` or `ascend`."""
    device: str | None
    """Device the kernels are for, as the plugin names it (`A2`); None without."""
    soc: str | None
    """Chip that kernels from source were built for (`ascend910b1`); None without."""
    arch: str | None
    """Machine the kernels are for (`aarch64`); None without."""
    kernels: str | None
    """`prebuilt` or `source`; None without."""
    kernel_wheel: str | None
    """File name of the upstream wheel that prebuilt kernels were taken from."""
    toolchain: str | None
    """Versions of what kernels from source were built with; None without."""
    commit: str | None
    """Our git commit; None if it was not built from a git checkout."""
    dirty: bool | None
    """Whether its sources had changes against that commit; None as above."""
    lock_sha256: str
    series_sha256: Mapping[str, str]
    own_files: Mapping[str, str]
    """Path in the wheel to sha256, of every file that this project wrote."""
    hooks: Mapping[str, str]
    """Patched upstream file to a line that its patch adds and upstream lacks."""
    lock: str
    advisories: Mapping[str, Mapping[str, str]]
    """Published vulnerability to its `cve`, its `severity`, the `status` of this wheel
    (`open`, `fixed here`, `not affected`, `fixed upstream`) and the `detail`."""
    advisories_as_of: str


def load_build_info(record: Path = BUILD_RECORD) -> BuildInfo | None:
    """Read the record; None when this package does not come from a built wheel.

    Exits if it is torn. An exception would be dropped at the start of a server.
    """
    try:
        return BuildInfo(**json.loads(record.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (TypeError, ValueError) as error:
        sys.exit(
            f"error: {record}: expected the build record of a wheel, found something "
            f"else ({error}); install the wheel again with --force-reinstall"
        )
