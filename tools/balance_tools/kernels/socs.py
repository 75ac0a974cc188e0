"""The chips that kernels can be built for, as the plugin's own setup.py lists them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from balance_tools.errors import ToolError

TABLE = "soc_to_device"
OPEN_FAMILY, OPEN_DEVICE = "ascend950", "A5"
"""The plugin takes any name of this family without listing it."""
WITHOUT_AICORE_LIBRARY = ("ascend310p", OPEN_FAMILY)
"""For these the plugin's CMakeLists.txt builds no libvllm_ascend_kernels.so."""


def known_socs(pristine: Path) -> dict[str, str]:
    """Chip to device type (`A2`), read from the sdist's setup.py without running it.

    The short names (`910b`) are left out: csrc/build_aclnn.sh does not know them and
    would build no operators, without an error.

    Raises:
        ToolError: upstream has moved the table.
    """
    path = pristine / "setup.py"
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and node.targets[0].id == TABLE
        ):
            table: dict[str, str] = ast.literal_eval(node.value)
            return {soc: dev for soc, dev in table.items() if soc.startswith("ascend")}
    raise ToolError(
        f"{path}: expected a dictionary {TABLE!r} of the chips, found none; see how "
        "upstream names them now and fix tools/balance_tools/kernels/socs.py"
    )


def device_of(soc: str, pristine: Path) -> str:
    """The device type that the plugin's build gives this chip.

    Raises:
        ToolError: it knows no such chip.
    """
    known = known_socs(pristine)
    if re.fullmatch(rf"{OPEN_FAMILY}[a-z0-9_]*", soc):
        return OPEN_DEVICE
    if soc not in known:
        raise ToolError(
            f"SOC: expected one of {', '.join(known)}, or a name that starts with "
            f"{OPEN_FAMILY}, found {soc!r}; choose the chip of your devices"
        )
    return known[soc]
