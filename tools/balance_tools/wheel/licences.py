"""The licence files of a wheel: ours from here, upstream's from its sdists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from balance_tools.errors import ToolError

OURS = ("LICENSE", "NOTICE")
UPSTREAM = {
    "vllm": {"vllm/LICENSE": "LICENSE"},
    "vllm_ascend": {
        "vllm_ascend/LICENSE": "LICENSE",
        # The sdist has this text once, with the third-party code of the kernels, and
        # the headers of the other kernel sources refer to it.
        "vllm_ascend/LICENSE.CANN-2.0": "csrc/third_party/catlass/LICENSE",
    },
}
"""Package to (path below licenses/ in the dist-info → path in the sdist)."""


def licence_files(root: Path, pristine: Mapping[str, Path]) -> dict[str, Path]:
    """Path below licenses/ to source, for the packages in `pristine` (their sdists).

    Raises:
        ToolError: a file is missing.
    """
    found = {name: root / name for name in OURS}
    for package, folder in pristine.items():
        found |= {name: folder / path for name, path in UPSTREAM[package].items()}
    for path in found.values():
        if not path.is_file():
            raise ToolError(
                f"{path}: expected a licence file that the wheel has to carry, found "
                "none; restore it, or run `make vendor` if it is upstream's"
            )
    return found
