"""Refuses to build from a tree that is not what the lock and the series say.

It needs only what a build has: no index, no network, none of the tools' libraries. The
vendored trees carry a manifest.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.manifest import MANIFEST_NAME, Manifest
from balance_tools.paths import Paths
from balance_tools.run import capture, git
from balance_tools.upstream.lock import Lock
from vllm_balance.fingerprint import series_sha256


def check_trees(paths: Paths, lock: Lock, packages: Sequence[str]) -> None:
    """Refuse a package whose tree must not be packed."""
    for package in packages:
        tree = paths.vendored(package)
        manifest = Manifest.read(tree / MANIFEST_NAME)
        if manifest is None:
            raise ToolError(
                f"{tree}: expected upstream's sources here, found none; run `make "
                "vendor`"
            )
        now = {
            "sdist": lock.packages[package].sha256,
            "series": series_sha256(paths.root, package),
        }
        if any(manifest.inputs.get(key) != value for key, value in now.items()):
            raise ToolError(
                f"{tree}: expected the tree of this lock and patch series, found that "
                "of another; run `make vendor`"
            )
        wrong = manifest.missing(tree) or manifest.changed(tree)
        if wrong:
            raise ToolError(
                f"{tree / wrong[0]}: expected what `make vendor` wrote, found it "
                "missing or edited; refresh the edit into a patch, or run `make vendor`"
            )
        strays = ignored(paths.root, [tree / path for path in manifest.unknown(tree)])
        strays = [path for path in strays if path.name != MANIFEST_NAME]
        if strays:
            raise ToolError(
                f"{strays[0]}: expected only upstream's files and tracked ones, found "
                "one that git ignores; remove it, or give it a line in .gitignore if "
                "it is ours"
            )


def ignored(root: Path, files: Sequence[Path]) -> list[Path]:
    """Those of `files` that git ignores; none outside a git checkout."""
    if not (root / ".git").exists() or not files:
        return []
    names = "\0".join(map(str, files))
    found = capture(git(root, "check-ignore", "-z", "--stdin"), stdin=names.encode())
    return [Path(name) for name in found.text.split("\0") if name]
