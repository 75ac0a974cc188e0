"""Try the series on every final release of vLLM in a range."""

from __future__ import annotations

import hashlib
import json
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from packaging.version import InvalidVersion, Version

from balance_tools.contract.fit import Pin, findings, read_pin, status_of
from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.hooks.model import Status, placed_by
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.rebase.export import export
from balance_tools.rebase.journal import Session, Work, work_root
from balance_tools.rebase.patches import place_all
from balance_tools.rebase.scan_rows import ScannedPatch, ScannedRelease
from balance_tools.rebase.sources import PristineTree, plans_between, pristine_tree
from balance_tools.series.apply import load_series, patched_files
from balance_tools.upstream.fetch import fetch
from balance_tools.upstream.index import default_index
from balance_tools.upstream.lock import Artifact, Lock
from balance_tools.upstream.resolve import all_links, artifact_of_link
from vllm_balance.fingerprint import series_sha256

PACKAGE = "vllm"
WORKERS = 2
ROOMS = ("contract", "hooks", "rebase", "series")
"""The tools that a row depends on."""


def parse_range(text: str) -> tuple[Version, Version]:
    """Parse `A..B`.

    Raises:
        ToolError: it is not two versions in order.
    """
    try:
        first, last = (Version(part) for part in text.split(".."))
    except (ValueError, InvalidVersion):
        raise ToolError(
            f"scan: expected two versions as in 0.13.0..0.33.0, found {text!r}"
        ) from None
    if first > last:
        raise ToolError(f"scan: expected the lower version first, found {text!r}")
    return first, last


def releases(paths: Paths, first: Version, last: Version) -> list[Artifact]:
    """Return the sdists of every final release in the range, oldest first.

    The list is looked up once for each range; a repeated scan needs no network.

    Raises:
        ToolError: the index cannot be asked, or has no such release.
    """
    known = paths.cache / "releases" / f"{PACKAGE}-{first}..{last}.json"
    if known.is_file():
        entries: list[dict[str, Any]] = json.loads(known.read_text())
        return [Artifact(**entry) for entry in entries]
    index = default_index()
    found: dict[Version, Artifact] = {}
    for link in all_links(index, PACKAGE):
        version = link.release[1]
        if version is None or not link.filename.endswith(".tar.gz"):
            continue
        final = not version.is_prerelease and not version.is_postrelease
        if not final or not first <= version <= last:
            continue
        if link.yanked is None:
            found[version] = artifact_of_link(index, link)
        else:
            why = link.yanked or "no reason given"
            print(
                f"note: {PACKAGE} {version} was yanked ({why}); left out",
                file=sys.stderr,
            )
    if not found:
        raise ToolError(f"scan: no final release with an sdist in {first}..{last}")
    artifacts = [found[version] for version in sorted(found)]
    known.parent.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps([asdict(one) for one in artifacts], indent=1))
    return artifacts


def scan(
    paths: Paths, lock: Lock, artifacts: Sequence[Artifact]
) -> list[ScannedRelease]:
    """Rebase the series onto every release, two at a time.

    Args:
        paths: The repository.
        lock: The pin, whose series is tried.
        artifacts: The sdists of the releases.

    Returns:
        One row a release, in the order of `artifacts`. What a row's series makes of
        the touched files lies below build/rebase/scan/VERSION/patched.
    """
    folder = work_root(paths) / "scan"
    folder.mkdir(parents=True, exist_ok=True)
    pin = read_pin(paths, lock, load_series(paths.patches(PACKAGE)))
    top = Path(__file__).resolve().parents[1]
    tools = [file for room in ROOMS for file in (top / room).rglob("*.py")]
    ours = [paths.root / name for name in pin.files] if pin else []
    # Rows of other tools, files or patches do not count as known.
    digest = hashlib.sha256(series_sha256(paths.root, PACKAGE).encode())
    for file in (*sorted(tools), *ours):
        digest.update(file.name.encode() + file.read_bytes())
    key = digest.hexdigest()
    rows: dict[str, ScannedRelease] = {}
    with (
        ProcessPoolExecutor(WORKERS) as pool,
        progress("scanning releases", len(artifacts), "release") as report,
    ):
        jobs = {
            pool.submit(_one, paths, lock, artifact, folder, pin, key): artifact
            for artifact in artifacts
        }
        for done, job in enumerate(as_completed(jobs), 1):
            rows[jobs[job].version] = job.result()
            report(done)
    return [rows[artifact.version] for artifact in artifacts]


def _one(
    paths: Paths,
    lock: Lock,
    artifact: Artifact,
    folder: Path,
    pin: Pin | None,
    key: str,
) -> ScannedRelease:
    """Try one release, or return what is known of it."""
    work = Work(folder / artifact.version)
    inputs = [key, artifact.sha256, lock.vllm.sha256]
    known = work.path / "row.json"
    if known.is_file():
        data: dict[str, Any] = json.loads(known.read_text())
        if data.pop("inputs") == inputs:
            return ScannedRelease.load(data)
    begun = time.monotonic()
    fetch(artifact, paths)
    remove_tree(work.path)
    work.path.mkdir(parents=True)
    try:
        new = pristine_tree(artifact, paths, PACKAGE)
    except ToolError as error:  # upstream has another layout
        gone, why = Status.TARGET_DELETED.label, (str(error),)
        patches = load_series(paths.patches(PACKAGE)).patches
        cells = [ScannedPatch(patch.name, gone, why, {}) for patch in patches]
        row = ScannedRelease(artifact.version, tuple(cells), 0.0)
    else:
        row = _row(work, paths, lock, artifact, new, pin)
    row = replace(row, seconds=time.monotonic() - begun)
    known.write_text(json.dumps({"inputs": inputs, **asdict(row)}, indent=1))
    return row


def _row(
    work: Work,
    paths: Paths,
    lock: Lock,
    artifact: Artifact,
    new: PristineTree,
    pin: Pin | None,
) -> ScannedRelease:
    old = {PACKAGE: pristine_tree(lock.vllm, paths, PACKAGE)}
    plans = plans_between(old, {PACKAGE: new})
    series = {PACKAGE: load_series(paths.patches(PACKAGE))}
    session = Session(artifact.version, plans, "", dry_run=True)
    session = export(work, place_all(work, session, series, quiet=True), series)
    moved = load_series(work.final_series(PACKAGE))
    for path, content in patched_files(moved, new.tree).items():
        file = work.path / "patched" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    row = ScannedRelease(artifact.version, tuple(_cells(session)), 0.0)
    if pin is None or not row.placed:
        return row
    found = findings(pin, moved, new.tree, work.path / "contract", artifact.version)
    remove_tree(work.path / "contract")
    told = tuple(str(one) for one in found)
    return replace(row, fit=status_of(found).label, findings=told)


def _cells(session: Session) -> list[ScannedPatch]:
    cells = []
    for result in session.results:
        bad = [hook for hook in result.hooks if hook.status.needs_human]
        reasons = [f"{h.path}: {h.note}" for h in bad]
        if result.status.needs_human and not reasons:
            reasons = list(result.notes)
        placed, label = placed_by(result.hooks), result.status.label
        cells.append(ScannedPatch(result.name, label, tuple(reasons), placed))
    return cells
