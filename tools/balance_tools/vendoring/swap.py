"""Put a new folder in the place of an old one, so that a crash leaves one of the two.

The folders of one swap lie in a staging folder on the same disk:

- `new/<name>`    being put together; worth nothing after a crash
- `ready/<name>`  complete; only where the kernel cannot exchange two folders
- `old/<name>`    what was replaced; worth nothing
"""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from balance_tools.files import remove_tree

AT_FDCWD = -100
RENAME_EXCHANGE = 2
# What the kernel or the file system answers when it cannot exchange.
CANNOT = {errno.ENOSYS, errno.EINVAL, errno.EXDEV, errno.ENOTSUP, errno.EPERM}

OnStep = Callable[[str], None]


def exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one go; returns whether that is possible here.

    It is not without Linux, and on some network and overlay file systems.
    """
    renameat2 = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if renameat2 is None:
        return False
    code = renameat2(
        AT_FDCWD, os.fsencode(one), AT_FDCWD, os.fsencode(other), RENAME_EXCHANGE
    )
    if code == 0:
        return True
    number = ctypes.get_errno()
    if number in CANNOT:
        return False
    raise OSError(number, os.strerror(number), str(other))


def swap_in(
    staging: Path, tree: Path, step: OnStep, exchange: Callable[[Path, Path], bool]
) -> None:
    """Make `<staging>/new/<name>` the folder `tree`; the old one is removed.

    `step` is called with the name of each step as it begins.
    """
    new, ready, old = _folders(staging, tree)
    step("swap")
    if not tree.exists():
        new.replace(tree)
    elif not exchange(new, tree):
        ready.parent.mkdir(exist_ok=True)
        old.parent.mkdir(exist_ok=True)
        new.replace(ready)
        step("ready")
        _move_away(tree, old)
        step("moved away")
        ready.replace(tree)
    step("swapped")
    for leftover in (new, old):
        remove_tree(leftover)


def recover(staging: Path, tree: Path, ours: Callable[[Path], list[str]]) -> None:
    """Finish or undo a swap that was interrupted; without one, nothing happens.

    `ours(folder)` lists the paths of a complete folder that no download can restore.
    """
    new, ready, old = _folders(staging, tree)
    if ready.is_dir():
        if tree.exists():
            # The old folder was still there, or partly: it stays the one that counts.
            lost = (path for path in ours(ready) if not os.path.lexists(tree / path))
            copy_files(ready, tree, lost)
        else:
            ready.replace(tree)
    for leftover in (new, ready, old):
        remove_tree(leftover)


def copy_files(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copy files, named relative to `source`; links stay links."""
    for name in names:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, target / name, follow_symlinks=False)


def _folders(staging: Path, tree: Path) -> tuple[Path, Path, Path]:
    return (
        staging / "new" / tree.name,
        staging / "ready" / tree.name,
        staging / "old" / tree.name,
    )


def _move_away(tree: Path, old: Path) -> None:
    try:
        tree.replace(old)
    except OSError as error:
        # A folder of a lower layer of an overlay file system (an image's earlier
        # layer) cannot be renamed; what is ours in it is in the new folder as well.
        if error.errno != errno.EXDEV:
            raise
        remove_tree(tree)
