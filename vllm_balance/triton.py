"""Finds out, without importing it, whether Triton can work on this installation.

Without it the Ascend server starts, says that it is healthy, and dies at the first
request: the model runner calls a Triton kernel in every step.
"""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distributions, requires
from importlib.util import find_spec
from pathlib import Path

PROJECT = "triton-ascend"
BACKEND = Path("backends", "ascend")
NOT_DECLARED = "pybind11"
"""triton-ascend imports it and does not say that it requires it; without it, vLLM goes
on without Triton."""


def triton_problem() -> str | None:
    """A sentence with the repair, or None where Triton works or is not required.

    It is required where the installed vllm names triton-ascend and torch_npu is there;
    without that the plugin itself refuses.
    """
    wanted = _requirement()
    if wanted is None or find_spec("torch_npu") is None:
        return None
    repair = (
        f"pip uninstall --yes triton {PROJECT}; pip install --no-deps '{wanted}' "
        "--extra-index-url <the vendor's index>"
    )
    spec = find_spec("triton")
    folder = None if spec is None or spec.origin is None else Path(spec.origin).parent
    over = next((d.version for d in distributions(name="triton")), None)
    if folder is None:
        found = "triton: expected the files of triton-ascend, found no such package"
    elif over is not None:
        found = (
            f"{folder}: expected the files of {PROJECT}, found triton {over} over them"
        )
    elif not (folder / BACKEND).is_dir():
        found = f"{folder}: expected triton-ascend, found no {BACKEND} in it"
    elif find_spec(NOT_DECLARED) is None:
        found = f"{NOT_DECLARED}: {PROJECT} imports it, found no such package"
        repair = f"pip install {NOT_DECLARED}"
    else:
        return None
    what = "The server would start and die at the first request"
    return f"{found}. {what}. Repair: {repair}"


def _requirement() -> str | None:
    """The requirement of the installed vllm, `triton-ascend==3.2.2`, or None."""
    try:
        lines = requires("vllm") or []
    except PackageNotFoundError:
        return None
    for line in lines:
        if re.match(rf"{PROJECT}\b", line):
            return line.partition(";")[0].strip()
    return None
