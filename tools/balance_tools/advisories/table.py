"""The table advisories.toml: what is published of vLLM, and what holds for a release.

Which advisories a patch fixes stands in the patch: fields `Advisory`, and `Fixed-In`,
the release of its package from which on the patch is left out. So the table need not
change when a patch comes or goes.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from datetime import date
from enum import Enum
from pathlib import Path
from typing import Any

import tomlkit
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from tomlkit.exceptions import TOMLKitError

from balance_tools.errors import ToolError
from balance_tools.text import read_text

TABLE_NAME = "advisories.toml"
ADVISORY = "https://github.com/vllm-project/vllm/security/advisories/{}"
SEVERITIES = ("critical", "high", "medium", "low", "unknown")
GHSA = re.compile(r"GHSA(-[2-9cfghjmpqrvwx]{4}){3}")


class Status(Enum):
    OPEN = "open"
    FIXED = "fixed here"
    NOT_AFFECTED = "not affected"
    UPSTREAM = "fixed upstream"


@dataclass(frozen=True)
class Advisory:
    id: str
    """The id in GitHub's list: `GHSA-…`."""
    severity: str
    """A word of SEVERITIES, and the CVSS score where it is known: `high 7.5`."""
    affected: str
    """The releases of vLLM that have it, as in a requirement."""
    what: str
    """One line: what an attacker sends, and what it does."""
    cve: str = ""
    test: str = ""
    """The test that fails without the patch that fixes it here."""
    not_affected: str = ""
    """Why a release in `affected` does not have it as we ship it."""
    lacks: tuple[str, ...] = ()
    """Files of the packages that the patched trees do not have, or FILE: TEXT."""
    has: tuple[str, ...] = ()
    workaround: str = ""
    """What an operator can do while it is open; empty if nothing is known."""
    remark: str = ""
    """Why `affected` differs from the published range."""
    unverified: str = ""
    """What was not found in the sources, so that only upstream's word tells."""

    def affects(self, release: Version) -> bool:
        return SpecifierSet(self.affected, prereleases=True).contains(release)

    def is_fixed_in(self, release: Version) -> bool:
        """Whether the release is newer than all that are affected."""
        ends = (part for part in SpecifierSet(self.affected) if "<" in part.operator)
        return not all(part.contains(release, prereleases=True) for part in ends)


@dataclass(frozen=True)
class Judged:
    advisory: Advisory
    status: Status

    @property
    def detail(self) -> str:
        """The detail of the status: a workaround, a reason, or the name of a test."""
        advisory, affected = self.advisory, f"affected: {self.advisory.affected}"
        texts = {
            Status.OPEN: advisory.workaround or "nothing is known",
            Status.FIXED: advisory.test,
            Status.NOT_AFFECTED: advisory.not_affected or affected,
            Status.UPSTREAM: affected,
        }
        return texts[self.status]


@dataclass(frozen=True)
class Table:
    as_of: date
    advisories: tuple[Advisory, ...]

    def judge(self, release: Version, patched: Collection[str]) -> list[Judged]:
        """The status of each in a release of vLLM whose patches fix `patched`."""
        return [Judged(a, _status(a, release, patched)) for a in self.advisories]


def _status(advisory: Advisory, release: Version, patched: Collection[str]) -> Status:
    if advisory.is_fixed_in(release):
        return Status.UPSTREAM
    if not advisory.affects(release):
        return Status.NOT_AFFECTED
    if advisory.id in patched:
        return Status.FIXED
    return Status.NOT_AFFECTED if advisory.not_affected else Status.OPEN


def load_advisories(path: Path) -> Table:
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
    as_of, entries = data.get("as-of"), data.get("advisory", [])
    if not isinstance(as_of, date) or not isinstance(entries, list):
        raise ToolError(
            f"{path}: expected as-of = YYYY-MM-DD and entries [[advisory]], found "
            f"{as_of!r}; write the day until which published ones are in it"
        )
    advisories: dict[str, Advisory] = {}
    for number, entry in enumerate(entries, 1):
        advisory = _advisory(entry, f"{path}: advisory {number}")
        if advisories.setdefault(advisory.id, advisory) is not advisory:
            raise ToolError(f"{path}: {advisory.id} stands there twice; remove one")
    return Table(as_of, tuple(advisories.values()))


def _advisory(entry: Any, where: str) -> Advisory:
    names = {field.name.replace("_", "-"): field.name for field in fields(Advisory)}
    try:
        values = {names[key]: value for key, value in entry.items()}
        lacks, has = (tuple(values.pop(key, ())) for key in ("lacks", "has"))
        advisory = Advisory(**values, lacks=lacks, has=has)
        SpecifierSet(advisory.affected)
        Version(advisory.severity.partition(" ")[2] or "0")
        wrong = [value for value in values.values() if not isinstance(value, str)]
        level = advisory.severity.split()[0]
        right = GHSA.fullmatch(advisory.id) and level in SEVERITIES
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ToolError(
            f"{where}: expected the fields of an advisory, found that one is wrong, "
            f"missing or unknown ({error}); there are {', '.join(names)}"
        ) from error
    if wrong or not right:
        raise ToolError(
            f"{where}: expected an id GHSA-xxxx-xxxx-xxxx, a severity such as 'high "
            f"7.5' and texts, found {advisory.id!r} and {advisory.severity!r}"
        )
    notes = advisory.workaround, advisory.remark, advisory.unverified
    if not (advisory.not_affected or any(notes)):
        raise ToolError(
            f"{where}: {advisory.id}: expected not-affected, workaround, remark or "
            "unverified, found none; say what an operator does, or why nobody knows"
        )
    return advisory
