"""Hold a rebased series and our files against the release, before it is written."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from balance_tools.contract.check import Finding
from balance_tools.contract.fit import Expected, expect, make_side, misfits, our_files
from balance_tools.contract.history import with_commits
from balance_tools.files import exclusive
from balance_tools.hooks.model import Status
from balance_tools.paths import Paths
from balance_tools.rebase.session import Session, Work
from balance_tools.run import listed_by_git
from balance_tools.series.apply import Series, load_series, patched_files
from balance_tools.upstream.lock import Lock
from balance_tools.upstream.pristine import ensure_pristine

PACKAGE = "vllm"


@dataclass(frozen=True)
class Pin:
    """What our files and the series expect, read from the release of the pin."""

    paths: Paths
    version: str
    tree: Path
    files: tuple[str, ...]
    expected: Expected


def read_pin(paths: Paths, lock: Lock) -> Pin | None:
    """Read the pin, or return what is known of it; None if no file is ours.

    Raises:
        ToolError: the type checker does not get to the end.
    """
    if not (paths.root / ".git").exists():
        return None
    files = our_files(listed_by_git(paths.root))
    if not files:
        return None
    tree = ensure_pristine(lock.vllm, paths)
    folder = paths.build / "contract"
    with exclusive(folder / ".lock"):
        series = load_series(paths.patches(PACKAGE))
        patched = patched_files(series, tree)
        side = make_side(folder / "pin", tree, patched, paths.root, files)
        expected = expect(side, folder / "pin.json")
    return Pin(paths, lock.vllm.version, tree, tuple(files), expected)


def findings(
    pin: Pin, series: Series, tree: Path, folder: Path, version: str
) -> tuple[Finding, ...]:
    """Return what does not fit a release.

    Args:
        pin: What we expect.
        series: As it is for the release.
        tree: Of the release.
        folder: Scratch, best beside `tree`.
        version: Of the release, or a name.
    """
    patched = patched_files(series, tree)
    side = make_side(folder, tree, patched, pin.paths.root, pin.files)
    return misfits(pin.expected, series, pin.tree, side, is_later(version, pin.version))


def is_later(version: str, than: str) -> bool:
    """Whether a release is later than another; what is no version is."""
    try:
        return Version(version) > Version(than)
    except InvalidVersion:
        return True


def status_of(found: tuple[Finding, ...]) -> Status:
    """Return the status that a release gets for what does not fit."""
    if not found:
        return Status.UNTOUCHED
    return Status.VANISHED if not found[0].file else Status.MISFIT


def fit(
    pin: Pin | None, work: Work, session: Session, clone: Path | None = None
) -> Status:
    """Check the series in the work folder, and say what does not fit.

    Args:
        pin: What our files expect; None if there are none.
        work: Of the rebase.
        session: Of the rebase.
        clone: Of upstream, to say which commits did it.

    Returns:
        UNTOUCHED, VANISHED (a symbol of a Relies-On line is gone) or MISFIT.
    """
    plan = next(plan for plan in session.plans if plan.package == PACKAGE)
    series = load_series(work.final_series(PACKAGE))
    print(f"checking our files against {plan.new_label}", file=sys.stderr, flush=True)
    if pin is None:
        print("note: no files of ours here; only patches are checked", file=sys.stderr)
        return Status.UNTOUCHED
    folder = pin.paths.build / "contract" / session.target
    tree = Path(plan.new_tree)
    found = findings(pin, series, tree, folder, session.target)
    if clone is not None:
        found = with_commits(found, clone, pin.version, session.target)
    (work.path / "findings.txt").write_text("".join(f"{one}\n" for one in found))
    for one in found:
        print(f"  {one}", file=sys.stderr)
    return status_of(found)
