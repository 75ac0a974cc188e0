"""The licence files of a wheel: ours from here, upstream's from its sdists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from balance_tools.errors import ToolError

OURS = ("LICENSE", "NOTICE")
UPSTREAM: Mapping[str, Mapping[str, str]] = {
    "vllm": {"vllm/LICENSE": "LICENSE"},
    "vllm_ascend": {
        "vllm_ascend/LICENSE": "LICENSE",
        # The sdist has this text once, with the third-party code of the kernels, and
        # the headers of the other kernel sources refer to it.
        "vllm_ascend/LICENSE.CANN-2.0": "csrc/third_party/catlass/LICENSE",
    },
}
"""Package to (path below licenses/ in the dist-info → path in the sdist)."""
FIRST_LINES = {
    "vllm/LICENSE": "Apache License",
    "vllm_ascend/LICENSE": "Apache License",
    "vllm_ascend/LICENSE.CANN-2.0": "CANN Open Software License Agreement Version 2.0",
}
"""How each text must begin: upstream may move or change a file."""


def licence_files(root: Path, pristine: Mapping[str, Path]) -> dict[str, Path]:
    """Path below licenses/ to source, for the packages in `pristine` (their sdists).

    Raises:
        ToolError: a file is missing or is another licence than expected.
    """
    files = {name: root / name for name in OURS}
    for package, folder in pristine.items():
        files |= {name: folder / path for name, path in UPSTREAM[package].items()}
    for name, path in files.items():
        if not path.is_file():
            raise ToolError(
                f"{path}: expected a licence file that the wheel has to carry, found "
                "none; restore it, or run `make vendor` if it is upstream's"
            )
        expected = FIRST_LINES.get(name, "")
        first_line = path.read_text(encoding="utf-8").strip().partition("\n")[0]
        if not first_line.startswith(expected):
            raise ToolError(
                f"{path}: expected the text of {expected!r}, found {first_line!r}; "
                "read what upstream changed and fix wheel/licences.py"
            )
    return files
