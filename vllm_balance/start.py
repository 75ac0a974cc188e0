"""Refuses to start where another vLLM is mixed into this one, or Triton cannot work.

Entry point of group ``vllm.platform_plugins``: the first thing that vLLM asks in every
process, before it imports a platform that may not fit. It names no platform.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from vllm_balance.build_info import BuildInfo, load_build_info
from vllm_balance.installed import find_installed
from vllm_balance.triton import triton_problem
from vllm_balance.verify import NAMES, repair_mixed, strangers


def register() -> None:
    """Exit with one sentence and the commands that repair it, or do nothing.

    Not an exception: vLLM drops those of a platform plugin.
    """
    info = load_build_info()
    if info is None:  # a checkout: nothing was installed that could be mixed
        return
    found = find_installed(*NAMES)
    problems = [*strangers(info, found), *hooks_that_are_gone(info)]
    if problems:
        sys.exit(
            f"error: {'; '.join(problems)}. This is not the vLLM that was built and "
            f"tested, so it does not start. Repair: {repair_mixed(info, found)}"
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
        spec = find_spec(package)
        if spec is None or spec.origin is None:
            continue
        root = Path(spec.origin).parents[1]
        for path, line in info.hooks.items():
            if path.startswith(f"{package}/") and not _has_line(root / path, line):
                yield (
                    f"{root / path}: expected the patch of balance scheduling in it, "
                    f"found none, as in a stock {package.replace('_', '-')}"
                )
                break


def _has_line(path: Path, line: str) -> bool:
    return path.is_file() and line in path.read_text(encoding="utf-8")
