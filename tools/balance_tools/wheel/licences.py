"""The licence files of a wheel: ours from here, upstream's from its sdists."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from balance_tools.errors import ToolError

OURS = ("LICENSE", "NOTICE")
APACHE = "Apache License"
UPSTREAM = {
    "vllm": {"vllm/LICENSE": ("LICENSE", APACHE)},
    "vllm_ascend": {
        "vllm_ascend/LICENSE": ("LICENSE", APACHE),
        # The sdist has this text once, with the third-party code of the kernels, and
        # the headers of the other kernel sources refer to it.
        "vllm_ascend/LICENSE.CANN-2.0": (
            "csrc/third_party/catlass/LICENSE",
            "CANN Open Software License Agreement Version 2.0",
        ),
    },
}
"""Package to (path below licenses/ in the dist-info → path in the sdist, and how the
text must begin: upstream may move or change a file)."""


def licence_files(root: Path, pristine: Mapping[str, Path]) -> dict[str, Path]:
    """Path below licenses/ to source, for the packages in `pristine` (their sdists).

    Raises:
        ToolError: a file is missing or is another licence than expected.
    """
    wanted = {name: (root / name, "") for name in OURS}
    for package, folder in pristine.items():
        texts = UPSTREAM[package].items()
        wanted |= {name: (folder / path, begin) for name, (path, begin) in texts}
    for path, expected in wanted.values():
        if not path.is_file():
            raise ToolError(
                f"{path}: expected a licence file that the wheel has to carry, found "
                "none; restore it, or run `make vendor` if it is upstream's"
            )
        first_line = path.read_text(encoding="utf-8").strip().partition("\n")[0]
        if not first_line.startswith(expected):
            raise ToolError(
                f"{path}: expected the text of {expected!r}, found {first_line!r}; "
                "read what upstream changed and fix wheel/licences.py"
            )
    return {name: path for name, (path, _) in wanted.items()}
