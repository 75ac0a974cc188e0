"""An environment as `build.py` makes it, without anything of ours: for comparisons."""

import shutil
import subprocess
from pathlib import Path

from balance_tools.files import remove_tree
from balance_tools.paths import Paths
from balance_tools.run import listed_by_git
from balance_tools.series.apply import load_series, patched_files
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine

OURS = "vllm_balance"
"""The package of which upstream has nothing."""


def make_unpatched(environment: Path, packages: str, out: Path) -> None:
    """Copy an environment, by links, and put upstream's files in the places of ours.

    `packages` is the path of its packages in it; what is in `out` is replaced.
    """
    paths = Paths.find()
    remove_tree(out)
    subprocess.run(["cp", "--archive", "--link", environment, out], check=True)
    installed = out / packages
    for name, artifact in load_lock(paths.lock).packages.items():
        tree = ensure_pristine(artifact, paths)
        ours = set(listed_by_git(paths.root, "--", name))
        ours |= set(patched_files(load_series(paths.patches(name)), tree))
        for path in ours:
            # Not written to: the file is the other environment's, too.
            (installed / path).unlink(missing_ok=True)
            if (tree / path).is_file():
                shutil.copyfile(tree / path, installed / path)
    for folder in (OURS, *(f.name for f in installed.glob(f"{OURS}-*.dist-info"))):
        remove_tree(installed / folder)
