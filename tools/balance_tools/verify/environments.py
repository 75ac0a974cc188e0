"""Environments for a verification: the requirements once, the wheel of ours on top."""

from __future__ import annotations

import venv
from pathlib import Path

from balance_tools.files import remove_tree
from balance_tools.run import output_of
from balance_tools.serving.env import pip

# What the conftest of upstream's tests imports.
TEST_REQUIREMENTS = ("tblib", "pytest-asyncio")


def layered_environment(
    folder: Path, wheel: Path, base: Path, requirements: bool = False
) -> Path:
    """Make an environment that has `wheel`, and all else from another one.

    Args:
        folder: Where; what is there is replaced.
        wheel: Installed here.
        base: Interpreter of the environment that has its requirements.
        requirements: Install what of them `base` lacks; else none is looked at.

    Returns:
        The interpreter.

    Raises:
        ToolError: pip could not install the wheel.
    """
    remove_tree(folder)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    ask = "import site; print('\\n'.join(site.getsitepackages()))"
    said = output_of([base, "-c", ask])
    (site,) = folder.glob("lib/python*/site-packages")
    # addsitedir, unlike a plain path, reads the .pth files of the base as well.
    lines = "".join(f"import site; site.addsitedir({d!r})\n" for d in said.split())
    (site / "base.pth").write_text(lines)
    pip(python, "install", *([] if requirements else ["--no-deps"]), str(wheel))
    return python
