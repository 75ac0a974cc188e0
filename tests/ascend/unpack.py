"""Unpacks a wheel, under another version and without some requirements if so wished."""

import re
from zipfile import ZipFile


def unpack(wheel, packages, version, drop):
    """Put the files of a wheel where pip would, for pip to find them installed.

    `packages` is its site-packages; without a `version`, the wheel's own. Requirements
    that `drop` takes are left out; the wheel has no `.data` folder.
    """
    with ZipFile(wheel) as archive:
        names = archive.namelist()
        (record,) = (name for name in names if re.fullmatch(r"[^/]+/RECORD", name))
        info = record.partition("/")[0]
        archive.extractall(packages)
    if version is None:
        return
    renamed = info.replace(info.removesuffix(".dist-info").partition("-")[2], version)
    renamed = f"{renamed.removesuffix('.dist-info')}.dist-info"
    (packages / info).rename(packages / renamed)
    metadata = packages / renamed / "METADATA"
    lines = metadata.read_text(encoding="utf-8").split("\n")
    kept = [
        f"Version: {version}" if line.startswith("Version: ") else line
        for line in lines
        if not (line.startswith("Requires-Dist: ") and drop(line.partition(": ")[2]))
    ]
    metadata.write_text("\n".join(kept), encoding="utf-8")
    # Without hashes: METADATA has changed, and nobody verifies these.
    listed = "".join(f"{name.replace(info, renamed)},,\n" for name in names)
    (packages / renamed / "RECORD").write_text(listed, encoding="utf-8")
