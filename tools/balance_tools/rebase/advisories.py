"""The status of published vulnerabilities after a bump, by advisories.toml."""

from __future__ import annotations

from collections.abc import Sequence

from packaging.version import Version

from balance_tools.advisories.table import (
    TABLE_NAME,
    Judged,
    Status,
    load_advisories,
)
from balance_tools.paths import Paths
from balance_tools.rebase.move import Moved
from balance_tools.series.fixed import patched_in
from balance_tools.text import table
from balance_tools.upstream.lock import load_lock


def judged_there(paths: Paths, release: str, moves: Sequence[Moved]) -> list[Judged]:
    patched = {
        name
        for moved in moves
        for patch in moved.series.patches
        if patch.name in moved.texts
        for name in patch.header.advisories
    }
    advisories = load_advisories(paths.root / TABLE_NAME)
    return advisories.judge(Version(release), patched)


def advisories_markdown(
    paths: Paths, release: str, moves: Sequence[Moved]
) -> list[str]:
    advisories, lock = load_advisories(paths.root / TABLE_NAME), load_lock(paths.lock)
    pinned = lock.vllm.version
    before = advisories.judge(Version(pinned), patched_in(paths.root, lock))
    after = judged_there(paths, release, moves)
    closed = [
        new.advisory.id
        for old, new in zip(before, after, strict=True)
        if new.status is Status.UPSTREAM and old.status in (Status.OPEN, Status.FIXED)
    ]
    lines = [
        "",
        "## Published vulnerabilities",
        "",
        f"Published until {advisories.as_of}. {release} closes {len(closed)} of "
        f"{pinned}: {', '.join(closed) or 'none'}.",
    ]
    remaining = [
        (new.advisory.id, new.advisory.severity, new.status.value, new.detail)
        for new in after
        if new.status is not Status.UPSTREAM
    ]
    if remaining:
        lines += ["", *table(("there", "severity", "status", "detail"), remaining)]
    return lines
