"""Try the series on every final release of vLLM in a range: a loop over a bump."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from balance_tools.advisories.table import Status
from balance_tools.contract.fit import Finding, read_pin
from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.rebase.advisories import judged_there
from balance_tools.rebase.bump import PACKAGE, Judged, judge
from balance_tools.text import table
from balance_tools.upstream.index import Index
from balance_tools.upstream.lock import Artifact, load_lock
from balance_tools.upstream.resolve import all_links, artifact_of_link


def releases(bounds: str) -> list[Artifact]:
    """Return the sdists of every final release in a range `A..B`, oldest first."""
    first, _, last = bounds.partition("..")
    try:
        versions = SpecifierSet(f">={first},<={last}", prereleases=False)
    except InvalidSpecifier:
        raise ToolError(
            f"scan: expected two versions as in 0.13.0..0.33.0, found {bounds!r}"
        ) from None
    index = Index()
    sdists: dict[Version, Artifact] = {}
    for link in all_links(index, PACKAGE):
        version = link.release[1]
        if version is None or not link.filename.endswith(".tar.gz"):
            continue
        if version not in versions or version.is_postrelease:
            continue
        if link.yanked is None:
            sdists[version] = artifact_of_link(index, link)
        else:
            reason = link.yanked or "no reason given"
            note = f"note: {PACKAGE} {version} was yanked ({reason}); left out"
            print(note, file=sys.stderr)
    if not sdists:
        raise ToolError(f"scan: no final release with an sdist in {bounds}")
    return [sdists[version] for version in sorted(sdists)]


def scan(paths: Paths, artifacts: Sequence[Artifact]) -> dict[str, Judged]:
    """Judge a bump to each release; returns what was found by the version.

    The new series are left in build/rebase/scan/VERSION.
    """
    pin, lock = read_pin(paths), load_lock(paths.lock)
    rows = {}
    for artifact in artifacts:
        print(f"{PACKAGE} {artifact.version}", file=sys.stderr, flush=True)
        folder = paths.build / "rebase" / "scan" / artifact.version
        try:
            judged = judge(paths, replace(lock, vllm=artifact), {}, folder, pin)
        except ToolError as error:  # upstream has another layout
            judged = Judged((), (Finding("", 0, str(error)),))
        rows[artifact.version] = judged
    return rows


def scan_markdown(paths: Paths, rows: Mapping[str, Judged]) -> str:
    pin = load_lock(paths.lock).vllm.version
    placed = [row for row in rows.values() if row.placed]
    checked = [row for row in placed if not row.misfits]
    lines = [
        f"# The series of {PACKAGE} {pin} on {len(rows)} releases",
        "",
        f"Placed with no human: {len(placed)} of {len(rows)}. Checked (our files and "
        f"hooks fit): {len(checked)} of {len(rows)}.",
        "",
    ]
    cells = []
    for version, row in rows.items():
        judged = judged_there(paths, version, row.moves)
        is_open = [advisory for advisory in judged if advisory.status is Status.OPEN]
        cells.append((version, row.status.label, len(is_open)))
    lines += table(("release", "status", "open advisories"), cells)
    lines += ["", "## What a person must decide", ""]
    for version, row in rows.items():
        for patch in row.results:
            lines += [f"- {version}, {patch.name}: {text}" for text in patch.reasons]
        lines += [f"- {version}: {finding}" for finding in row.misfits]
    return "\n".join(lines) + "\n"
