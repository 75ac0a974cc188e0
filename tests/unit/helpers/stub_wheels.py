"""Tiny wheels that stand for somebody else's: a stock release, a vendor's package."""

import zipfile


def write_stub(folder, name, version, *, requires=(), files=None):
    stem = f"{name.replace('-', '_')}-{version}"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{stem}-py3-none-any.whl"
    metadata = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    metadata += [f"Requires-Dist: {line}" for line in requires]
    wheel = ["Wheel-Version: 1.0", "Generator: stub", "Root-Is-Purelib: true"]
    wheel += ["Tag: py3-none-any"]
    contents = {
        **(files or {}),
        f"{stem}.dist-info/METADATA": "\n".join(metadata) + "\n",
        f"{stem}.dist-info/WHEEL": "\n".join(wheel) + "\n",
    }
    record = "".join(f"{file},,\n" for file in contents)
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in contents.items():
            archive.writestr(file, text)
        archive.writestr(f"{stem}.dist-info/RECORD", record)
    return path
