"""Which published vulnerabilities the patches of a series fix in a release."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from pathlib import Path

from packaging.version import InvalidVersion, Version

from balance_tools.errors import ToolError
from balance_tools.series.apply import load_series
from balance_tools.series.patchfile import Patch
from balance_tools.upstream.lock import Lock


def is_fixed(patch: Patch, version: str) -> bool:
    """Whether a release of the patch's package needs the patch no more."""
    release = patch.header.get("Fixed-In")
    try:
        return release is not None and Version(version) >= Version(release)
    except InvalidVersion:
        raise ToolError(
            f"{patch.name}: Fixed-In: expected a release such as 0.30.0, found "
            f"{release!r}; write the first that needs the patch no more"
        ) from None


def fixed_by(patches: Iterable[Patch], version: str) -> set[str]:
    """The advisories that the patches of a package fix in one release of it."""
    return {
        name
        for patch in patches
        if not is_fixed(patch, version)
        for name in patch.header.advisories
    }


def patched_in(root: Path, lock: Lock, left_out: Collection[str] = ()) -> set[str]:
    """The advisories that our series fix in the releases of a lock.

    `left_out` is the names of patches that a line leaves out.
    """
    fixed: set[str] = set()
    for package, artifact in lock.packages.items():
        series = load_series(root / "patches" / package)
        patches = [patch for patch in series.patches if patch.name not in left_out]
        fixed |= fixed_by(patches, artifact.version)
    return fixed
