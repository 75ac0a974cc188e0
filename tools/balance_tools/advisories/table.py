"""The table advisories.toml: what is published of vLLM, and what holds for a release.

Which advisories a patch mends stands in the patch: fields `Advisory`, and `Fixed-In`,
the release of its package from which on the patch is left out. So the table need not
change when a patch comes or goes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, fields
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import tomlkit
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version
from tomlkit.exceptions import TOMLKitError

from balance_tools.errors import ToolError
from balance_tools.series.apply import load_series
from balance_tools.series.patchfile import Patch
from balance_tools.text import read_text
from balance_tools.upstream.lock import Lock

TABLE_NAME = "advisories.toml"
ADVISORY = "https://github.com/vllm-project/vllm/security/advisories/{}"
SEVERITIES = ("critical", "high", "medium", "low", "unknown")
GHSA = re.compile(r"GHSA(-[2-9cfghjmpqrvwx]{4}){3}")


class AdvisoryState(Enum):
    """What holds for one advisory in one release, as people read it."""

    OPEN = "open"
    FIXED = "fixed here"
    NOT_AFFECTED = "not affected"
    UPSTREAM = "fixed upstream"


@dataclass(frozen=True)
class Advisory:
    """One published vulnerability of vLLM."""

    id: str
    """Of GitHub's list: `GHSA-…`."""
    severity: str
    """A word of SEVERITIES, and the CVSS score where it is known: `high 7.5`."""
    affected: str
    """The releases of vLLM that have it, as in a requirement."""
    what: str
    """One line: what an attacker sends, and what it does."""
    cve: str = ""
    test: str = ""
    """The test that fails without the patch that mends it here."""
    not_affected: str = ""
    """Why a release in `affected` does not have it as we ship it."""
    lacks: tuple[str, ...] = ()
    """Files of the packages that the patched trees do not have, or FILE: TEXT."""
    has: tuple[str, ...] = ()
    """Files that they do have, or FILE: TEXT."""
    workaround: str = ""
    """What an operator does where nothing fixes it; none where that is not known."""
    remark: str = ""
    """Where the range is another one than the published."""
    unverified: str = ""
    """What was not found in the sources: upstream's word alone says the rest."""

    def affects(self, release: Version) -> bool:
        """Whether the release is in the range."""
        return SpecifierSet(self.affected, prereleases=True).contains(release)

    def is_fixed_in(self, release: Version) -> bool:
        """Whether the release is newer than all that are affected."""
        ends = (one for one in SpecifierSet(self.affected) if "<" in one.operator)
        return not all(one.contains(release, prereleases=True) for one in ends)


@dataclass(frozen=True)
class Answer:
    """What holds for an advisory in one release."""

    advisory: Advisory
    state: AdvisoryState

    @property
    def text(self) -> str:
        """What goes with the state: a workaround, a reason, or the name of a test."""
        one = self.advisory
        texts = {
            AdvisoryState.OPEN: one.workaround or "nothing is known",
            AdvisoryState.FIXED: one.test,
            AdvisoryState.NOT_AFFECTED: one.not_affected or f"affected: {one.affected}",
            AdvisoryState.UPSTREAM: f"affected: {one.affected}",
        }
        return texts[self.state]


@dataclass(frozen=True)
class Table:
    """All of advisories.toml."""

    gathered: date
    """The day until which advisories were gathered."""
    advisories: tuple[Advisory, ...]

    def answers(self, release: Version, patched: Collection[str]) -> list[Answer]:
        """What holds in a release of vLLM whose patches mend `patched`."""
        return [Answer(one, _state(one, release, patched)) for one in self.advisories]


def _state(one: Advisory, release: Version, patched: Collection[str]) -> AdvisoryState:
    if one.is_fixed_in(release):
        return AdvisoryState.UPSTREAM
    if not one.affects(release):
        return AdvisoryState.NOT_AFFECTED
    if one.id in patched:
        return AdvisoryState.FIXED
    return AdvisoryState.NOT_AFFECTED if one.not_affected else AdvisoryState.OPEN


def is_fixed(patch: Patch, version: str) -> bool:
    """Whether a release of the patch's package needs the patch no more.

    Raises:
        ToolError: the patch names no release.
    """
    said = patch.header.get("Fixed-In")
    try:
        return said is not None and Version(version) >= Version(said)
    except InvalidVersion:
        raise ToolError(
            f"{patch.name}: Fixed-In: expected a release such as 0.30.0, found "
            f"{said!r}; write the first that needs the patch no more"
        ) from None


def fixed_by(patches: Iterable[Patch], version: str) -> set[str]:
    """The advisories that the patches of a package mend in one release of it."""
    return {
        name
        for patch in patches
        if not is_fixed(patch, version)
        for name in patch.header.advisories
    }


def patched_in(root: Path, lock: Lock, left_out: Collection[str] = ()) -> set[str]:
    """The advisories that our series mend in the releases of a lock.

    `left_out` is the names of patches that a line leaves out.
    """
    found: set[str] = set()
    for package, artifact in lock.packages.items():
        series = load_series(root / "patches" / package)
        patches = [patch for patch in series.patches if patch.name not in left_out]
        found |= fixed_by(patches, artifact.version)
    return found


def load_advisories(path: Path) -> Table:
    """Read and check the table.

    Raises:
        ToolError: names the entry that is wrong.
    """
    if not path.is_file():
        raise ToolError(
            f"{path}: expected the table of advisories, found no file; restore it from "
            "git"
        )
    try:
        data: Mapping[str, Any] = tomlkit.parse(read_text(path)).unwrap()
    except TOMLKitError as error:
        raise ToolError(
            f"{path}: expected TOML, found {error}; correct that line"
        ) from error
    gathered, entries = data.get("gathered"), data.get("advisory", [])
    if not isinstance(gathered, date) or not isinstance(entries, list):
        raise ToolError(
            f"{path}: expected gathered = YYYY-MM-DD and entries [[advisory]], found "
            f"{gathered!r}; write the day until which advisories were gathered"
        )
    found: dict[str, Advisory] = {}
    for number, entry in enumerate(entries, 1):
        one = _advisory(entry, f"{path}: advisory {number}")
        if found.setdefault(one.id, one) is not one:
            raise ToolError(f"{path}: {one.id} stands there twice; remove one")
    return Table(gathered, tuple(found.values()))


def _advisory(entry: Any, where: str) -> Advisory:
    names = {field.name.replace("_", "-"): field.name for field in fields(Advisory)}
    try:
        values = {names[key]: value for key, value in entry.items()}
        lacks, has = (tuple(values.pop(key, ())) for key in ("lacks", "has"))
        one = Advisory(**values, lacks=lacks, has=has)
        SpecifierSet(one.affected)
        Version(one.severity.partition(" ")[2] or "0")
        wrong = [value for value in values.values() if not isinstance(value, str)]
        right = GHSA.fullmatch(one.id) and one.severity.split()[0] in SEVERITIES
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ToolError(
            f"{where}: expected the fields of an advisory, found that one is wrong, "
            f"missing or unknown ({error}); there are {', '.join(names)}"
        ) from error
    if wrong or not right:
        raise ToolError(
            f"{where}: expected an id GHSA-xxxx-xxxx-xxxx, a severity such as 'high "
            f"7.5' and texts, found {one.id!r} and {one.severity!r}"
        )
    if not (one.not_affected or one.workaround or one.remark or one.unverified):
        raise ToolError(
            f"{where}: {one.id}: expected not-affected, workaround, remark or "
            "unverified, found none; say what an operator does, or why nobody knows"
        )
    return one
