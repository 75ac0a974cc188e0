"""Show where every hook stands, and prove that it is where it was meant to be."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.hooks.placement import Hook, check_placement, placement_of
from balance_tools.paths import Paths
from balance_tools.series.apply import Series, load_series, patched_steps
from balance_tools.series.patchfile import Patch
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine


@dataclass(frozen=True)
class PatchedModule:
    """One Python file before and after one patch."""

    patch: Patch
    path: str
    base: bytes
    patched: bytes

    @property
    def hooks(self) -> list[Hook]:
        """Where the patch changes the module."""
        return placement_of(self.base, self.patched, self.path)


def patched_modules(series: Series, tree: Path) -> Iterator[PatchedModule]:
    """Yield every Python file that a patch changes (not: creates or deletes).

    Raises:
        ToolError: the series does not apply to `tree`.
    """
    before: dict[str, bytes | None] = {}
    for patch, after in patched_steps(series, tree):
        for file in patch.files:
            new = after[file.path]
            if file.creates or new is None or not file.path.endswith(".py"):
                continue
            old = before.get(file.path)
            base = (tree / file.path).read_bytes() if old is None else old
            yield PatchedModule(patch, file.path, base, new)
        before = after


def compare_placement(
    intended: list[PatchedModule], found: list[PatchedModule]
) -> Iterator[str]:
    """Yield each hook of one series that does not stand there in the other."""
    by_name = {(module.patch.name, module.path): module for module in found}
    for module in intended:
        where = f"{module.patch.name}: {module.path}"
        other = by_name.pop((module.patch.name, module.path), None)
        if other is None:
            yield f"{where}: not patched in the other series"
            continue
        problems = check_placement(module.hooks, other.base, other.patched, module.path)
        yield from (f"{where}: {problem}" for problem in problems)
    yield from (f"{name}: {path}: patched only there" for name, path in by_name)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `check-placement`."""
    parser.add_argument("--package", choices=("vllm", "vllm_ascend"))
    parser.add_argument(
        "--series", type=Path, help="another series of --package, made for --tree"
    )
    parser.add_argument(
        "--tree", type=Path, help="the pristine tree that --series was made for"
    )


def run(args: argparse.Namespace) -> int:
    """Run `check-placement`."""
    if bool(args.series) != bool(args.tree) or (args.series and not args.package):
        raise ToolError(
            "--series: expected with --tree and --package; give all three to check "
            "a series that was moved to another release"
        )
    paths = Paths.find()
    lock = load_lock(paths.lock)
    problems: list[str] = []
    for name in [args.package] if args.package else list(lock.packages):
        tree = ensure_pristine(lock.packages[name], paths)
        pinned = list(patched_modules(load_series(paths.patches(name)), tree))
        shown = pinned
        if args.series:
            shown = list(patched_modules(load_series(args.series), args.tree))
        problems += compare_placement(pinned, shown)
        for module in shown:
            for hook in module.hooks:
                print(f"{module.patch.name}: {module.path}:{hook.line}: {hook.anchor}")
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0
