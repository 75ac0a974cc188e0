"""Copies the licence texts of every installed package into one folder.

licences.py FOLDER writes FOLDER/<package>/… and, for packages that ship no text,
FOLDER/without-text.txt with what their metadata says.
"""

from __future__ import annotations

import re
import shutil
import sys
from importlib.metadata import distributions
from pathlib import Path

TEXT = re.compile(r"(licen[cs]e|copying|notice|authors)", re.IGNORECASE)


def main(folder: Path) -> None:
    folder.mkdir()
    without = []
    for distribution in distributions():
        name = distribution.metadata["Name"]
        copied = 0
        for file in distribution.files or ():
            top, *below = file.parts
            if top.endswith(".dist-info") and any(map(TEXT.search, below)):
                target = folder.joinpath(name, *below)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(str(distribution.locate_file(file)), target)
                copied += 1
        if not copied:
            metadata = distribution.metadata
            keys = [k for k in ("License-Expression", "License") if k in metadata]
            licence = metadata[keys[0]].splitlines()[0] if keys else "not said"
            without.append(f"{name} {distribution.version}: {licence}\n")
    (folder / "without-text.txt").write_text("".join(sorted(without)))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
