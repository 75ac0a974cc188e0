"""Try the series on every final release of vLLM in a range."""

from __future__ import annotations

import hashlib
import json
import tarfile
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.version import InvalidVersion, Version

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.rebase.driver import make_trees, next_patch, rebase_patch
from balance_tools.rebase.finish import export
from balance_tools.rebase.model import Status
from balance_tools.rebase.session import PATCHES, TREES, Plan, Session, Work, work_root
from balance_tools.series.apply import Series, load_series, patched_files
from balance_tools.upstream.fetch import default_index, fetch
from balance_tools.upstream.lock import Artifact, Lock, release_of
from balance_tools.upstream.resolve import all_links, artifact_of_link

PACKAGE = "vllm"
WORKERS = 2


@dataclass(frozen=True)
class Cell:
    """One patch on one release; `reasons` say why a person must decide."""

    patch: str
    status: str
    reasons: tuple[str, ...]
    placed_by: dict[str, int]


@dataclass(frozen=True)
class Row:
    """One release: its patches in the order of the series, and the time it took."""

    version: str
    cells: tuple[Cell, ...]
    seconds: float

    @property
    def needs_human(self) -> bool:
        """Whether any patch needs a decision."""
        return any(Status.of(cell.status).needs_human for cell in self.cells)


def parse_range(text: str) -> tuple[Version, Version]:
    """Parse `A..B`.

    Raises:
        ToolError: it is not two versions in order.
    """
    try:
        first, last = (Version(part) for part in text.split(".."))
    except (ValueError, InvalidVersion):
        raise ToolError(
            f"--scan: expected two versions as in 0.13.0..0.33.0, found {text!r}"
        ) from None
    if first > last:
        raise ToolError(f"--scan: expected the lower version first, found {text!r}")
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
        release = release_of(link.filename)
        if release is None or not link.filename.endswith(".tar.gz"):
            continue
        version = release[1]
        final = not version.is_prerelease and not version.is_postrelease
        if final and first <= version <= last:
            found[version] = artifact_of_link(index, link)
    if not found:
        raise ToolError(f"--scan: no final release with an sdist in {first}..{last}")
    artifacts = [found[version] for version in sorted(found)]
    known.parent.mkdir(parents=True, exist_ok=True)
    known.write_text(json.dumps([asdict(one) for one in artifacts], indent=1))
    return artifacts


def scan(
    paths: Paths, lock: Lock, artifacts: Sequence[Artifact], base: Path
) -> list[Row]:
    """Rebase the series onto every release, two at a time.

    Args:
        paths: The repository.
        lock: The pin, whose series is tried.
        artifacts: The sdists of the releases.
        base: The pristine tree of the pin.

    Returns:
        One row a release, in the order of `artifacts`. What a row's series makes of
        the touched files lies below build/rebase/scan/VERSION/patched.
    """
    folder = work_root(paths) / "scan"
    key = load_series(paths.patches(PACKAGE)).sha256 + _tools_hash()
    rows: dict[str, Row] = {}
    with (
        ProcessPoolExecutor(WORKERS) as pool,
        progress("scanning releases", len(artifacts), "release") as report,
    ):
        jobs = {
            pool.submit(_one, paths, lock, artifact, folder, base, key): artifact
            for artifact in artifacts
        }
        for done, job in enumerate(as_completed(jobs), 1):
            rows[jobs[job].version] = job.result()
            report(done)
    return [rows[artifact.version] for artifact in artifacts]


def _tools_hash() -> str:
    """Hash the tools, so that results of other ones do not count as known."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).resolve().parents[1].rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _one(
    paths: Paths, lock: Lock, artifact: Artifact, folder: Path, base: Path, key: str
) -> Row:
    """Try one release, or return what is known of it."""
    work = Work(folder / artifact.version)
    inputs = [key, artifact.sha256, lock.vllm.sha256]
    known = work.path / "row.json"
    if known.is_file():
        data: dict[str, Any] = json.loads(known.read_text())
        if data.pop("inputs") == inputs:
            cells = tuple(
                Cell(**{**cell, "reasons": tuple(cell["reasons"])})
                for cell in data.pop("cells")
            )
            return Row(cells=cells, **data)
    archive = fetch(artifact, paths)
    remove_tree(work.path)
    work.path.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=folder) as name:
        tree = unpack_python(archive, Path(name))
        session = _rebase(work, paths, lock, artifact, tree, base)
        _write_patched(work, load_series(work.final / PACKAGE), tree)
    for plan in session.plans:
        remove_tree(work.repo(plan.package))
    row = Row(artifact.version, tuple(_cells(session)), sum(session.seconds.values()))
    known.write_text(json.dumps({"inputs": inputs, **asdict(row)}, indent=1))
    return row


def unpack_python(archive: Path, folder: Path) -> Path:
    """Unpack the package's Python files and return the top folder."""
    with tarfile.open(archive, "r:gz") as tar:
        for member in tar:
            parts = PurePosixPath(member.name).parts
            if len(parts) > 2 and parts[1] == PACKAGE and parts[-1].endswith(".py"):
                tar.extract(member, folder, filter="data")
    (top,) = folder.iterdir()
    return top


def _rebase(
    work: Work, paths: Paths, lock: Lock, artifact: Artifact, tree: Path, base: Path
) -> Session:
    series: dict[str, Series] = {PACKAGE: load_series(paths.patches(PACKAGE))}
    plan = Plan(
        package=PACKAGE,
        old_tree=str(base),
        new_tree=str(tree),
        old_label=f"{PACKAGE} {lock.vllm.version}",
        new_label=f"{PACKAGE} {artifact.version}",
    )
    session = Session(artifact.version, TREES, (plan,), lock="", dry_run=True)
    session = make_trees(work, session, series, quiet=True)
    while session.stage == PATCHES and (following := next_patch(session, series)):
        session = rebase_patch(work, session, *following, quiet=True)
    return export(work, session, series)


def _write_patched(work: Work, series: Series, tree: Path) -> None:
    for path, content in patched_files(series, tree).items():
        if content is not None:
            file = work.path / "patched" / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content)


def _cells(session: Session) -> list[Cell]:
    cells = []
    for result in session.results:
        placed: dict[str, int] = {}
        for hook in result.hooks:
            placed[hook.how or "nobody"] = placed.get(hook.how or "nobody", 0) + 1
        bad = [hook for hook in result.hooks if hook.status.needs_human]
        reasons = [f"{h.path}: {h.note}" for h in bad]
        if result.status.needs_human and not reasons:
            reasons = list(result.notes)
        cells.append(Cell(result.name, result.status.label, tuple(reasons), placed))
    return cells


def first_breaks(rows: Sequence[Row], pin: Version) -> dict[str, tuple[str, str]]:
    """Return, for each patch, the first release that broke it going back and forth.

    "" means none in that direction.
    """
    back = [row for row in reversed(rows) if Version(row.version) < pin]
    forth = [row for row in rows if Version(row.version) > pin]
    names = [cell.patch for cell in rows[0].cells]
    return {name: (_first(back, name), _first(forth, name)) for name in names}


def _first(rows: Sequence[Row], name: str) -> str:
    for row in rows:
        for cell in row.cells:
            if cell.patch == name and Status.of(cell.status).needs_human:
                return row.version
    return ""


def scan_markdown(rows: Sequence[Row], pin: str) -> str:
    """Return the table, the first breaks and the reasons."""
    names = [cell.patch for cell in rows[0].cells]
    good = sum(not row.needs_human for row in rows)
    lines = [
        f"# The series of {PACKAGE} {pin} on {len(rows)} releases",
        "",
        f"{good} of {len(rows)} need no human.",
        "",
        f"| release | {' | '.join(names)} | seconds |",
        "|---" * (len(names) + 2) + "|",
    ]
    for row in rows:
        statuses = " | ".join(cell.status for cell in row.cells)
        lines.append(f"| {row.version} | {statuses} | {row.seconds:.1f} |")
    lines += ["", "## First release that broke each patch", ""]
    lines += ["| patch | going back | going forth |", "|---|---|---|"]
    for name, (back, forth) in first_breaks(rows, Version(pin)).items():
        lines.append(f"| {name} | {back or 'none'} | {forth or 'none'} |")
    lines += ["", "## What a person must decide", ""]
    for row in rows:
        for cell in row.cells:
            lines += [f"- {row.version}, {cell.patch}: {why}" for why in cell.reasons]
    return "\n".join(lines) + "\n"


def write_scan(folder: Path, rows: Sequence[Row], pin: str, picture: str) -> Path:
    """Write scan.md, scan.json and scan.svg; return the first."""
    data = {"pin": pin, "rows": [asdict(row) for row in rows]}
    (folder / "scan.json").write_text(json.dumps(data, indent=1) + "\n")
    (folder / "scan.svg").write_text(picture)
    (folder / "scan.md").write_text(scan_markdown(rows, pin))
    return folder / "scan.md"
