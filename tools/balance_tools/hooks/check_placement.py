"""Show where every hook stands, and prove that it is where it was meant to be."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

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


def run(args: argparse.Namespace) -> int:
    """Run `check-placement`."""
    paths = Paths.find()
    problems: list[str] = []
    for name, artifact in load_lock(paths.lock).packages.items():
        tree = ensure_pristine(artifact, paths)
        for module in patched_modules(load_series(paths.patches(name)), tree):
            where = f"{module.patch.name}: {module.path}"
            for hook in module.hooks:
                print(f"{where}:{hook.line}: {hook.anchor}")
            found = check_placement(
                module.hooks, module.base, module.patched, module.path
            )
            problems += [f"{where}: {problem}" for problem in found]
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if problems else 0
