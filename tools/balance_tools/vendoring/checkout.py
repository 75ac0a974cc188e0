"""A second source root below build/, with another lock and other series.

Everything that git tracks is copied as it is in the work tree; downloads are shared.
Whatever works on the repository (vendor, wheel, tests) works there in the same way.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.paths import Paths
from balance_tools.run import listed_by_git, refuse_missing
from balance_tools.series.apply import SERIES
from balance_tools.upstream.lock import load_lock

LISTING = ".checkout"
NO_CONSTRAINTS = "# Another release than the pin: the resolver decides.\n"


def make_checkout(paths: Paths, folder: Path, lock: Path, series: Path | None) -> Paths:
    """Make or update the source root at `folder`; what was built there is kept.

    `lock` is copied to its upstream.toml, and `series`, a folder with the patches of
    each package, to its patches/; None is no patches.
    """
    refuse_missing(paths.root)
    checkout = Paths(folder)
    names = [
        name
        for name in listed_by_git(paths.root)
        if (paths.root / name).is_file() and not name.startswith("patches/")
    ]
    if not names:
        raise ToolError(
            f"{paths.root}: expected files that git tracks, found none; run this in a "
            "clone"
        )
    folder.mkdir(parents=True, exist_ok=True)
    listing = folder / LISTING  # what an earlier checkout copied
    before = listing.read_text().splitlines() if listing.is_file() else []
    for name in set(before) - set(names):
        (folder / name).unlink(missing_ok=True)
    listing.write_text("\n".join(names) + "\n")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(paths.root / name, folder / name)
    shutil.copyfile(lock, checkout.lock)
    if load_lock(checkout.lock).vllm.version != load_lock(paths.lock).vllm.version:
        (folder / "tests" / "constraints.txt").write_text(NO_CONSTRAINTS)
    remove_tree(checkout.root / "patches")
    for package in load_lock(checkout.lock).packages:
        if series is not None:
            shutil.copytree(series / package, checkout.patches(package))
        else:
            checkout.patches(package).mkdir(parents=True)
            (checkout.patches(package) / SERIES).touch()
    for shared in (paths.cache, paths.pristine):
        shared.mkdir(parents=True, exist_ok=True)
        link = checkout.build / shared.name
        if not link.is_symlink():
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(os.path.relpath(shared.resolve(), link.parent.resolve()))
    return checkout
