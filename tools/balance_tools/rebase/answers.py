"""What a bump means for the published vulnerabilities of advisories.toml."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import Version

from balance_tools.advisories.table import (
    TABLE_NAME,
    AdvisoryState,
    Answer,
    load_advisories,
    patched_in,
)
from balance_tools.paths import Paths
from balance_tools.rebase.move import Moved
from balance_tools.text import table
from balance_tools.upstream.lock import load_lock


def answers_there(paths: Paths, release: str, every: Sequence[Moved]) -> list[Answer]:
    """What would hold in a release of vLLM with the patches that were moved to it."""
    patched = {
        name
        for moved in every
        for patch in moved.series.patches
        if patch.name in moved.texts
        for name in patch.header.advisories
    }
    known = load_advisories(paths.root / TABLE_NAME)
    return known.answers(Version(release), patched)


def answers_markdown(paths: Paths, release: str, every: Sequence[Moved]) -> list[str]:
    """The section of the report: what the bump closes, and what is left there."""
    known, lock = load_advisories(paths.root / TABLE_NAME), load_lock(paths.lock)
    pinned = lock.vllm.version
    before = known.answers(Version(pinned), patched_in(paths.root, lock))
    after = answers_there(paths, release, every)
    closed = [
        new.advisory.id
        for old, new in zip(before, after, strict=True)
        if new.state is AdvisoryState.UPSTREAM
        and old.state in (AdvisoryState.OPEN, AdvisoryState.FIXED)
    ]
    lines = [
        "",
        "## Published vulnerabilities",
        "",
        f"Gathered until {known.gathered}. {release} closes {len(closed)} of {pinned}: "
        f"{', '.join(closed) or 'none'}.",
    ]
    left = [
        (one.advisory.id, one.advisory.severity, one.state.value, one.text)
        for one in after
        if one.state is not AdvisoryState.UPSTREAM
    ]
    if left:
        lines += ["", *table(("there", "severity", "state", "answer"), left)]
    return lines
