"""Try the series on every final release of vLLM in a range: a dry run of each bump."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import Version

from balance_tools.errors import ToolError
from balance_tools.hooks.model import Status
from balance_tools.paths import Paths
from balance_tools.rebase.bump import PACKAGE, start
from balance_tools.text import table
from balance_tools.upstream.index import Index
from balance_tools.upstream.lock import Artifact, load_lock
from balance_tools.upstream.resolve import all_links, artifact_of_link

PLACED = (Status.UNTOUCHED, Status.VANISHED, Status.MISFIT)
"""The worst statuses of a release on which every hook has a place."""


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


def scan(paths: Paths, artifacts: Sequence[Artifact]) -> dict[str, Status]:
    """Return what became of the series and our files on each release, at worst.

    The report of a release is below build/rebase/VERSION.dry-run.
    """
    lock, found = load_lock(paths.lock), {}
    for number, artifact in enumerate(artifacts, 1):
        print(f"{number} of {len(artifacts)}: {artifact.filename}", file=sys.stderr)
        try:
            code = start(paths, replace(lock, vllm=artifact), dry_run=True, line="")
        except ToolError as error:  # upstream has another layout
            print(f"error: {error}", file=sys.stderr)
            code = Status.TARGET_DELETED.exit_code
        found[artifact.version] = next(s for s in Status if s.exit_code == code)
    return found


def scan_markdown(found: Mapping[str, Status], pin: str) -> str:
    """Return how many releases are placed and checked, and a row for each."""
    placed = [status in PLACED for status in found.values()]
    checked = [status is Status.UNTOUCHED for status in found.values()]
    lines = [
        f"# The series of {PACKAGE} {pin} on {len(found)} releases",
        "",
        f"Placed with no human: {sum(placed)} of {len(found)}. "
        f"Checked (our files and hooks fit): {sum(checked)} of {len(found)}.",
        "",
    ]
    words = {True: "yes", False: "no"}
    rows = [
        (version, words[is_placed], "yes" if is_checked else found[version].label)
        for version, is_placed, is_checked in zip(found, placed, checked, strict=True)
    ]
    return "\n".join([*lines, *table(("release", "placed", "checked"), rows)]) + "\n"
