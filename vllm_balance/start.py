"""Refuses to start if another vLLM is mixed into this one, or Triton cannot work.

Entry point of group ``vllm.platform_plugins``: the first thing that vLLM asks in every
process, before it imports a platform that may not fit. It names no platform.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import distributions
from pathlib import Path

from vllm_balance.build_info import BuildInfo, load_build_info
from vllm_balance.installed import find_installed, folder_of
from vllm_balance.verify import NAMES, repair_mixed, strangers

PROJECT = "triton-ascend"
BACKEND = Path("backends", "ascend")
NOT_DECLARED = "pybind11"
"""A requirement that triton-ascend does not declare; without it, vLLM goes on without
Triton."""


def register() -> None:
    """Exit with one sentence and the commands that repair it, or do nothing.

    Not an exception: vLLM drops those of a platform plugin.
    """
    info = load_build_info()
    if info is None:  # a checkout: nothing was installed that could be mixed
        return
    installed = find_installed(*NAMES)
    problems = [*strangers(info, installed), *hooks_that_are_gone(info)]
    if problems:
        sys.exit(
            f"error: {'; '.join(problems)}. This is not the vLLM that was built and "
            f"tested, so it does not start. Repair: {repair_mixed(info, installed)}"
        )
    if problem := triton_problem():
        sys.exit(f"error: {problem}")


def hooks_that_are_gone(info: BuildInfo) -> Iterator[str]:
    """A sentence on the first file of each imported package that lost its hook.

    A line of the patch is looked for, not a hash, so that an operator's own fix of
    such a file does not stop the server.
    """
    packages = dict.fromkeys(path.partition("/")[0] for path in info.hooks)
    for package in packages:
        if (folder := folder_of(package)) is None:
            continue
        hooks = [(folder.parent / path, line) for path, line in info.hooks.items()]
        for path, line in hooks:
            if folder not in path.parents:
                continue
            if not path.is_file() or line not in path.read_text(encoding="utf-8"):
                yield (
                    f"{path}: expected the patch of balance scheduling in it, found "
                    f"none, as in a stock {package.replace('_', '-')}"
                )
                break


def triton_problem() -> str | None:
    """A sentence with the repair, or None where Triton works or is not required.

    Without it the Ascend server starts, says that it is healthy, and dies at the first
    request: the model runner calls a Triton kernel in every step. Nothing is imported.
    It is required where the installed vllm names triton-ascend and torch_npu is there;
    without that the plugin itself refuses.
    """
    requirement = _requirement()
    if requirement is None or folder_of("torch_npu") is None:
        return None
    repair = (
        f"pip uninstall --yes triton {PROJECT}; pip install --no-deps '{requirement}' "
        "--extra-index-url <the vendor's index>"
    )
    folder = folder_of("triton")
    triton = next((d.version for d in distributions(name="triton")), None)
    if folder is None:
        problem = "triton: expected the files of triton-ascend, found no such package"
    elif triton is not None:
        problem = f"{folder}: expected the files of {PROJECT}, "
        problem += f"found triton {triton} over them"
    elif not (folder / BACKEND).is_dir():
        problem = f"{folder}: expected triton-ascend, found no {BACKEND} in it"
    elif folder_of(NOT_DECLARED) is None:
        problem = f"{NOT_DECLARED}: {PROJECT} imports it, found no such package"
        repair = f"pip install {NOT_DECLARED}"
    else:
        return None
    effect = "The server would start and die at the first request"
    return f"{problem}. {effect}. Repair: {repair}"


def _requirement() -> str | None:
    """The requirement of the installed vllm, `triton-ascend==3.2.2`, or None."""
    requirements = [
        vllm.distribution.requires or [] for vllm in find_installed("vllm")[:1]
    ]
    matches = (
        line
        for lines in requirements
        for line in lines
        if re.match(rf"{PROJECT}\b", line)
    )
    return next((line.partition(";")[0].strip() for line in matches), None)
