"""Adds the bill of materials of the installed wheel to that of the image.

sbom.py BILL: BILL lists the installed packages; those that the wheel carries get their
address, origin, patches and kernels, and BILL gets the vulnerabilities of the wheel's
VEX. It uses only the standard library.
"""

from __future__ import annotations

import json
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any
from urllib.parse import unquote

WHEEL = "vllm"
BILL, VEX = "vllm.cdx.json", "vllm.vex.cdx.json"
FROM_THE_WHEEL = ("purl", "licenses", "pedigree", "components")


def main(path: Path) -> None:
    carried = {part["name"]: part for part in document(BILL)["components"]}
    bill = json.loads(path.read_text(encoding="utf-8"))
    refs = {}
    for part in bill["components"]:
        source = carried.pop(part["name"].lower().replace("_", "-"), {})
        refs[source.get("bom-ref")] = part["bom-ref"]
        part.update({key: source[key] for key in FROM_THE_WHEEL if key in source})
    if carried:
        sys.exit(
            f"error: {path}: expected the packages of the wheel, found no "
            f"{', '.join(carried)}; list the environment that the wheel is in"
        )
    bill["vulnerabilities"] = document(VEX)["vulnerabilities"]
    for vulnerability in bill["vulnerabilities"]:
        for target in vulnerability["affects"]:
            target["ref"] = refs[unquote(target["ref"].partition("#")[2])]
    path.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")


def document(name: str) -> Any:
    text = distribution(WHEEL).read_text(f"sboms/{name}")
    if text is None:
        sys.exit(
            f"error: {WHEEL}: expected {name} in the installed wheel, found none; "
            "install a wheel of this project"
        )
    return json.loads(text)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
