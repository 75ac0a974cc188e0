"""vLLM as installed, without our patch of the front-end's dispatch."""

import os
import shutil
import subprocess
from pathlib import Path

import vllm

from vllm_balance.build_info import load_build_info

PATCH = Path(__file__).parents[1] / "patches/vllm/data-parallel-balance-dispatch.patch"


def without_dispatch(folder: Path) -> dict[str, str]:
    """Copies the installed package and takes the patch out of the copy.

    The copy shares its files with the installation; those that the patch changes are
    written anew.

    Returns:
        The environment variable that puts the copy before the installed package.

    Raises:
        subprocess.CalledProcessError: the patch is not in the installed package.
    """
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        installed = Path(vllm.__file__).parent
        shutil.copytree(installed, unfinished / "vllm", copy_function=os.link)
        subprocess.run(
            ["git", "apply", "--reverse", PATCH],
            cwd=unfinished,
            # Not as a part of the repository that it may lie in.
            env={**os.environ, "GIT_CEILING_DIRECTORIES": str(unfinished.parent)},
            check=True,
        )
        _satisfy_start(unfinished)
        unfinished.rename(folder)
    return {"PYTHONPATH": str(folder)}


def _satisfy_start(packages: Path) -> None:
    """Leaves in each file, as a comment, the line that a server's start looks for."""
    info = load_build_info()
    assert info is not None, "run it in an environment with an installed wheel"
    for name, line in info.hooks.items():
        path = packages / name
        if path.exists() and line not in (text := path.read_text()):
            path.unlink()  # not the installation's file
            path.write_text(f"{text}\n# {line}\n")
