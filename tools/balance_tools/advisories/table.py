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
    """Of GitHub's list: `GHSA-…`."""
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
    """What an operator does where nothing fixes it; none where that is not known."""
    remark: str = ""
    """Where the range is another one than the published."""
    unverified: str = ""
    """What was not found in the sources: upstream's word alone says the rest."""

    def affects(self, release: Version) -> bool:
        return SpecifierSet(self.affected, prereleases=True).contains(release)

    def is_fixed_in(self, release: Version) -> bool:
        """Whether the release is newer than all that are affected."""
        ends = (one for one in SpecifierSet(self.affected) if "<" in one.operator)
        return not all(one.contains(release, prereleases=True) for one in ends)


@dataclass(frozen=True)
class Judged:
    advisory: Advisory
    status: Status

    @property
    def detail(self) -> str:
        """What goes with the status: a workaround, a reason, or the name of a test."""
        one = self.advisory
        texts = {
            Status.OPEN: one.workaround or "nothing is known",
            Status.FIXED: one.test,
            Status.NOT_AFFECTED: one.not_affected or f"affected: {one.affected}",
            Status.UPSTREAM: f"affected: {one.affected}",
        }
        return texts[self.status]


@dataclass(frozen=True)
class Table:
    as_of: date
    advisories: tuple[Advisory, ...]

    def judge(self, release: Version, patched: Collection[str]) -> list[Judged]:
        """What holds in a release of vLLM whose patches fix `patched`."""
        return [Judged(one, _status(one, release, patched)) for one in self.advisories]


def _status(one: Advisory, release: Version, patched: Collection[str]) -> Status:
    if one.is_fixed_in(release):
        return Status.UPSTREAM
    if not one.affects(release):
        return Status.NOT_AFFECTED
    if one.id in patched:
        return Status.FIXED
    return Status.NOT_AFFECTED if one.not_affected else Status.OPEN


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
        one = _advisory(entry, f"{path}: advisory {number}")
        if advisories.setdefault(one.id, one) is not one:
            raise ToolError(f"{path}: {one.id} stands there twice; remove one")
    return Table(as_of, tuple(advisories.values()))


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
