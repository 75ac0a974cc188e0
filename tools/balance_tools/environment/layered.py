"""A wheel of ours on top of an environment that has its requirements."""

from __future__ import annotations

import re
import venv
from pathlib import Path

from balance_tools.environment.reference import pip
from balance_tools.files import remove_tree
from balance_tools.run import output_of

OURS = re.compile(r"vllm(_ascend|_balance)?(-.*)?$")
"""Packages and dist-infos of a wheel of ours, and of a stock one."""


def layered_environment(folder: Path, wheel: Path, base: Path) -> Path:
    """Make an environment that has `wheel`, and all else but a vLLM from another one.

    Two of ours in one environment would refuse to start.

    Args:
        folder: Where; what is there is replaced.
        wheel: Installed here.
        base: Interpreter of the environment that has its requirements.

    Returns:
        The interpreter.

    Raises:
        ToolError: pip could not install the wheel.
    """
    remove_tree(folder)
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    ask = "import site; print('\\n'.join(site.getsitepackages()))"
    said = output_of([base, "-c", ask]).splitlines()
    (site,) = folder.glob("lib/python*/site-packages")
    links = [_without_vllm(Path(d), folder / f"base-{i}") for i, d in enumerate(said)]
    # addsitedir, unlike a plain path, reads the .pth files of the base as well.
    lines = "".join(f"import site; site.addsitedir({str(d)!r})\n" for d in links)
    (site / "base.pth").write_text(lines)
    pip(python, "install", "--no-deps", str(wheel))
    return python


def _without_vllm(site: Path, folder: Path) -> Path:
    """Make a folder of links to all that is installed in a folder but vLLM and ours."""
    folder.mkdir()
    for entry in site.iterdir():
        if not OURS.match(entry.name):
            (folder / entry.name).symlink_to(entry)
    return folder
