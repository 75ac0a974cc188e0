"""Whether our files and hooks fit a release: names, types, and what patches rely on."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from balance_tools.contract.check import (
    Finding,
    changed_lines,
    missing,
    new_errors,
    vanished_symbols,
)
from balance_tools.contract.names import Names
from balance_tools.contract.typecheck import Checked, type_check
from balance_tools.contract.uses import Ours, Use, inventory
from balance_tools.drift.symbols import Modules
from balance_tools.files import exclusive, remove_tree, replacing
from balance_tools.hooks.model import Status
from balance_tools.paths import Paths
from balance_tools.run import listed_by_git
from balance_tools.series.apply import Series, patched_files
from balance_tools.upstream.lock import Lock
from balance_tools.upstream.pristine import ensure_pristine

OURS = ("vllm/", "vllm_balance/")
VENDORED = "vllm"

Patched = Mapping[str, bytes | None]
"""What the series makes of the files that it touches; None is a deleted one."""


@dataclass(frozen=True)
class Side:
    """A release with the series and our files."""

    tree: Path
    """Upstream as it is."""
    root: Path
    """Upstream with the series and our files, for the type checker."""
    ours: Ours
    """What of `root` is ours."""

    def check(self) -> Checked:
        """Type-check what is ours."""
        return type_check(self.root, [*self.ours.files, *self.ours.hooks])


@dataclass(frozen=True)
class Expected:
    """What the pin says: the names that we use, and the checker's findings there."""

    uses: tuple[Use, ...]
    checked: Checked


@dataclass(frozen=True)
class Pin:
    """What our files and the series expect, read from the release of the pin."""

    paths: Paths
    version: str
    tree: Path
    files: tuple[str, ...]
    expected: Expected


def read_pin(paths: Paths, lock: Lock, series: Series) -> Pin | None:
    """Read the pin, or return what is known of it; None if no file is ours.

    Raises:
        ToolError: the type checker does not get to the end.
    """
    if not (paths.root / ".git").exists():
        return None
    tracked = listed_by_git(paths.root)
    files = [n for n in tracked if n.startswith(OURS) and n.endswith(".py")]
    if not files:
        return None
    tree = ensure_pristine(lock.vllm, paths)
    folder = paths.build / "contract"
    with exclusive(folder / ".lock"):
        patched = patched_files(series, tree)
        side = make_side(folder / "pin", tree, patched, paths.root, files)
        expected = expect(side, folder / "pin.pickle")
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
    """Whether a release is of a later minor version than another.

    A patch release has the names of the release that it mends, and of what is no
    version nobody knows.
    """
    try:
        return Version(version).release[:2] > Version(than).release[:2]
    except InvalidVersion:
        return False


def status_of(found: tuple[Finding, ...]) -> Status:
    """Return the status that a release gets for what does not fit."""
    if not found:
        return Status.UNTOUCHED
    return Status.VANISHED if not found[0].file else Status.MISFIT


def make_side(
    folder: Path, tree: Path, patched: Patched, source: Path, files: Sequence[str]
) -> Side:
    """Put a release together in `folder`, which is replaced.

    Args:
        folder: Where; on the same disk as `tree`, whose files are linked.
        tree: Upstream.
        patched: What the series makes of it.
        source: The repository.
        files: Our Python files, relative to it.
    """
    remove_tree(folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.json")
    shutil.copytree(
        tree / VENDORED, folder / VENDORED, ignore=ignored, copy_function=_link
    )
    hooks = {}
    for path, content in patched.items():
        file = folder / path
        file.unlink(missing_ok=True)
        if content is None or not path.endswith(".py"):
            continue
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        before = tree / path
        old = before.read_bytes() if before.is_file() else b""
        hooks[path] = changed_lines(old, content)
    for path in files:
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.unlink(missing_ok=True)
        shutil.copyfile(source / path, file)
    return Side(tree, folder, Ours(tuple(files), hooks))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk
        shutil.copyfile(source, target)


def expect(pin: Side, known: Path) -> Expected:
    """Return what the pin says, from the file `known` if nothing has changed since."""
    digest = hashlib.sha256(str(pin.tree.name).encode())
    for file in (*pin.ours.files, *pin.ours.hooks):
        digest.update(file.encode() + (pin.root / file).read_bytes())
    for tool in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(tool.read_bytes())
    key = digest.hexdigest()
    if known.is_file():
        of, expected = pickle.loads(known.read_bytes())
        if of == key:
            assert isinstance(expected, Expected)
            return expected
    checked = pin.check()
    uses = inventory(pin.root, pin.ours, checked.uses, Names(Modules(pin.tree)))
    expected = Expected(uses, Checked(checked.errors, ()))
    with replacing(known) as part:
        part.write_bytes(pickle.dumps((key, expected)))
    return expected


def misfits(
    expected: Expected, series: Series, old: Path, target: Side, forward: bool = True
) -> tuple[Finding, ...]:
    """Return everything of ours that does not fit the target, worst first.

    Args:
        expected: What the pin says.
        series: The series as it is for the target.
        old: The tree of the pin.
        target: The release to try.
        forward: Whether it may have names that the pin has not (`is_later`).
    """
    before, after = Names(Modules(old)), Names(Modules(target.tree))
    checked = target.check()
    seen = frozenset(
        (file, line, name.rpartition(".")[2])
        for file, line, name in checked.uses
        if file in target.ours.files
    )
    gone = missing(expected.uses, before, after, seen, forward)
    places = {(finding.file, finding.line) for finding in gone}
    wrong = [
        finding
        for finding in new_errors(target.ours, expected.checked, checked)
        if (finding.file, finding.line) not in places
    ]
    symbols = vanished_symbols(relied_on(series), before, after)
    return (*symbols, *gone, *wrong)


def relied_on(series: Series) -> list[tuple[str, tuple[str, ...]]]:
    """Return patch and symbols of every Relies-On line."""
    return [
        (patch.name, symbols)
        for patch in series.patches
        for symbols in patch.header.relies_on
    ]
