"""Environments for a verification: the requirements once, the wheel of ours on top."""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree

# What the conftest of upstream's tests imports.
TEST_REQUIREMENTS = ("tblib", "pytest-asyncio")


def layered_environment(folder: Path, wheel: Path, base: Path) -> Path:
    """Make an environment that has `wheel`, and all else from another one.

    Args:
        folder: Where; what is there is replaced.
        wheel: Installed without its requirements.
        base: Interpreter of the environment that has them.

    Returns:
        The interpreter.

    Raises:
        ToolError: pip could not install the wheel.
    """
    remove_tree(folder)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    said = subprocess.run(
        [str(base), "-c", "import site; print('\\n'.join(site.getsitepackages()))"],
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    (site,) = folder.glob("lib/python*/site-packages")
    # addsitedir, unlike a plain path, reads the .pth files of the base as well.
    lines = "".join(f"import site; site.addsitedir({d!r})\n" for d in said.split())
    (site / "base.pth").write_text(lines)
    install(python, "--no-deps", str(wheel))
    return python


def install(python: Path, *arguments: str) -> None:
    """Run pip install; ToolError if it fails."""
    command = [str(python), "-m", "pip", "install", "--quiet", *arguments]
    if subprocess.run(command, stdout=sys.stderr).returncode:
        raise ToolError(
            f"{python}: pip could not install {arguments[-1]}; read what it wrote above"
        )
