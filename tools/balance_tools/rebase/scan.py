"""Try the series on every final release of vLLM in a range: a loop over a bump."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from balance_tools.contract.fit import Finding, findings, read_pin, status_of
from balance_tools.errors import ToolError
from balance_tools.hooks.model import PatchResult, Status, worst
from balance_tools.paths import Paths
from balance_tools.rebase.move import move_series
from balance_tools.rebase.sources import pristine_tree
from balance_tools.series.apply import load_series
from balance_tools.text import table
from balance_tools.upstream.index import Index
from balance_tools.upstream.lock import Artifact, load_lock
from balance_tools.upstream.resolve import all_links, artifact_of_link

PACKAGE = "vllm"


@dataclass(frozen=True)
class ScannedRelease:
    """What the series and our files are on one release."""

    version: str
    """Of upstream."""
    patches: tuple[PatchResult, ...]
    """In the order of the series."""
    findings: tuple[Finding, ...] = ()
    """What of our files and hooks does not fit, where every hook has a place."""

    @property
    def placed(self) -> bool:
        """Whether every hook has a place."""
        return not any(patch.status.needs_human for patch in self.patches)

    @property
    def checked(self) -> bool:
        """Whether everything has a place, and our files fit."""
        return self.placed and not self.findings

    @property
    def status(self) -> Status:
        """The worst status."""
        found = [patch.status for patch in self.patches]
        return worst([*found, status_of(self.findings)])


def releases(wanted: str) -> list[Artifact]:
    """Return the sdists of every final release in a range `A..B`, oldest first.

    Raises:
        ToolError: that is no range, the index cannot be asked, or has no such release.
    """
    first, _, last = wanted.partition("..")
    try:
        versions = SpecifierSet(f">={first},<={last}", prereleases=False)
    except InvalidSpecifier:
        raise ToolError(
            f"scan: expected two versions as in 0.13.0..0.33.0, found {wanted!r}"
        ) from None
    index = Index()
    found: dict[Version, Artifact] = {}
    for link in all_links(index, PACKAGE):
        version = link.release[1]
        if version is None or not link.filename.endswith(".tar.gz"):
            continue
        if version not in versions or version.is_postrelease:
            continue
        if link.yanked is None:
            found[version] = artifact_of_link(index, link)
        else:
            why = link.yanked or "no reason given"
            said = f"note: {PACKAGE} {version} was yanked ({why}); left out"
            print(said, file=sys.stderr)
    if not found:
        raise ToolError(f"scan: no final release with an sdist in {wanted}")
    return [found[version] for version in sorted(found)]


def scan(paths: Paths, artifacts: Sequence[Artifact]) -> list[ScannedRelease]:
    """Move the series of the pin to every release.

    The series of a row is left in build/rebase/scan/VERSION.
    """
    pin, series = read_pin(paths), load_series(paths.patches(PACKAGE))
    old, rows = pristine_tree(load_lock(paths.lock).vllm, paths, PACKAGE), []
    for artifact in artifacts:
        print(f"{PACKAGE} {artifact.version}", file=sys.stderr, flush=True)
        try:
            new = pristine_tree(artifact, paths, PACKAGE)
        except ToolError as error:  # upstream has another layout
            gone, why = Status.TARGET_DELETED, (str(error),)
            names = [patch.name for patch in series.patches]
            results = tuple(PatchResult(PACKAGE, n, gone, (), why) for n in names)
            rows.append(ScannedRelease(artifact.version, results))
            continue
        moved = move_series(PACKAGE, series, old, new)
        folder = paths.build / "rebase" / "scan" / artifact.version
        moved.write(folder)
        wrong: tuple[Finding, ...] = ()
        if not moved.status.needs_human:
            wrong = findings(
                pin, load_series(folder), new, paths.build / "contract" / "scan"
            )
        rows.append(ScannedRelease(artifact.version, moved.results, wrong))
    return rows


def scan_markdown(rows: Sequence[ScannedRelease], pin: str) -> str:
    """Return the table and the reasons."""
    total = len(rows)
    lines = [
        f"# The series of {PACKAGE} {pin} on {total} releases",
        "",
        f"Placed with no human: {sum(row.placed for row in rows)} of {total}. "
        f"Checked (our files and hooks fit): {sum(row.checked for row in rows)} of "
        f"{total}.",
        "",
    ]
    names = [patch.name for patch in rows[0].patches]
    cells = []
    for row in rows:
        fit = "yes" if row.checked else status_of(row.findings).label
        statuses = (patch.status.label for patch in row.patches)
        cells.append([row.version, *statuses, fit if row.placed else "–"])
    lines += table(("release", *names, "checked"), cells)
    lines += ["", "## What a person must decide", ""]
    for row in rows:
        for patch in row.patches:
            lines += [f"- {row.version}, {patch.name}: {why}" for why in patch.reasons]
        lines += [f"- {row.version}: {finding}" for finding in row.findings]
    return "\n".join(lines) + "\n"
