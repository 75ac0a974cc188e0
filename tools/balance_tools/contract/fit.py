"""Whether our files and hooks fit a release: names, types, and what patches rely on."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from balance_tools.contract.check import (
    Finding,
    missing,
    new_errors,
    type_check,
    vanished_symbols,
)
from balance_tools.contract.used_words import Ours, Use, inventory, words_of
from balance_tools.drift.symbols import Modules
from balance_tools.files import exclusive, remove_tree
from balance_tools.hooks.model import Status
from balance_tools.paths import Paths
from balance_tools.run import listed_by_git
from balance_tools.series.apply import Series, load_series, patched_files
from balance_tools.text import added_lines
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine

OURS = ("vllm/", "vllm_balance/")
VENDORED = "vllm"


@dataclass(frozen=True)
class Pin:
    """What our files and the series expect, read from the release of the pin."""

    paths: Paths
    tree: Path
    files: tuple[str, ...]
    """Ours."""
    uses: tuple[Use, ...]
    """The names of upstream that we use."""
    mistakes: tuple[Finding, ...]
    """What the type checker finds there already."""


def read_pin(paths: Paths) -> Pin | None:
    """Read the pin; None if no file is ours.

    Raises:
        ToolError: the type checker does not get to the end.
    """
    if not (paths.root / ".git").exists():
        return None
    tracked = listed_by_git(paths.root)
    files = [n for n in tracked if n.startswith(OURS) and n.endswith(".py")]
    if not files:
        return None
    tree = ensure_pristine(load_lock(paths.lock).vllm, paths)
    series, folder = load_series(paths.patches(VENDORED)), paths.build / "contract/pin"
    with exclusive(folder.parent / ".lock"):
        ours = lay_out(folder, tree, series, paths.root, files)
        mistakes = type_check(folder, ours)
        uses = inventory(folder, ours, words_of(tree))
    return Pin(paths, tree, tuple(files), uses, mistakes)


def findings(pin: Pin, series: Series, tree: Path, folder: Path) -> tuple[Finding, ...]:
    """Return everything of ours that does not fit a release, worst first.

    `series` is for `tree`, the release; `folder` is scratch, and replaced.
    """
    ours = lay_out(folder, tree, series, pin.paths.root, pin.files)
    gone = missing(pin.uses, words_of(tree))
    places = {(one.file, one.line) for one in gone}
    wrong = new_errors(ours, pin.mistakes, type_check(folder, ours))
    wrong = [one for one in wrong if (one.file, one.line) not in places]
    return (*vanished_symbols(series.patches, Modules(tree)), *gone, *wrong)


def status_of(found: tuple[Finding, ...]) -> Status:
    """Return the status that a release gets for what does not fit."""
    if not found:
        return Status.UNTOUCHED
    return Status.VANISHED if not found[0].file else Status.MISFIT


def lay_out(
    folder: Path, tree: Path, series: Series, source: Path, files: Sequence[str]
) -> Ours:
    """Put `tree`, what the series makes of it, and our `files` together in `folder`.

    `folder` is replaced, and `files` are relative to the repository, `source`.
    """
    remove_tree(folder)
    ignored = shutil.ignore_patterns("__pycache__", "*.so", "*.json")
    shutil.copytree(tree / VENDORED, folder / VENDORED, ignore=ignored)
    hooks = {}
    for path, content in patched_files(series, tree).items():
        (folder / path).write_bytes(content)
        old = (tree / path).read_bytes()
        hooks[path] = added_lines(old.splitlines(), content.splitlines())
    for path in files:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source / path, folder / path)
    return Ours(tuple(files), hooks)
