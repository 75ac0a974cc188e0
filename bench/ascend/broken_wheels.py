"""Breaks the wheel on purpose, and sees tests on the emulated device fail each time.

    .venv/bin/python bench/ascend/broken_wheels.py [NAME …]

Needs what `make test-ascend` has built. Each broken wheel is whole for pip: its RECORD
fits. It is installed into a copy of the environment, where the tests named for it must
fail. First the wheel is packed anew unbroken: the same tests must pass.
"""

from __future__ import annotations

import argparse
import base64
import csv
import hashlib
import io
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "ascend"))

from build import (
    BUILT,
    build_wheel,
    copy_environment,
    install_wheel,
    remove_tree,
    step,
)

SWITCHES = ROOT / "patches/vllm_ascend/legacy-balance-switches.patch"

Members = dict[str, bytes]
"""The files of a wheel, by their paths in it."""
Edit = Callable[[Members], None]


@dataclass(frozen=True)
class Break:
    """One way to break a wheel."""

    edit: Edit
    """Changes the files; RECORD is made to fit afterwards."""
    file: str
    """The tests that must notice."""
    select: str
    """Which of them, as `-k` of pytest."""


def drop_a_patch(members: Members) -> None:
    """The plugin's switches are not mapped onto the option."""
    (path,) = re.findall(r"^\+\+\+ b/(.*)$", SWITCHES.read_text(), re.MULTILINE)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / path
        file.parent.mkdir(parents=True)
        file.write_bytes(members[path])
        command = ["patch", "-R", "-p1", "--silent", "-d", folder, "-i", str(SWITCHES)]
        subprocess.run(command, check=True)
        assert file.read_bytes() != members[path]
        members[path] = file.read_bytes()


def drop_a_library(members: Members) -> None:
    """The kernels that are not CANN's own operators are missing."""
    del members["vllm_ascend/libvllm_ascend_kernels.so"]


def falsify_the_second_version(members: Members) -> None:
    """The plugin calls itself as upstream's."""
    metadata = r"vllm_ascend-[^/]*dist-info/METADATA$"
    replace(members, metadata, r"(Version: [^+\n]*)\+.*", r"\1")


def raise_a_requirement(members: Members) -> None:
    """Something is required that no index has."""
    metadata = r"^vllm-[^/]*dist-info/METADATA$"
    old = r"Requires-Dist: transformers *[<>=!~;(].*"
    replace(members, metadata, old, "Requires-Dist: transformers>=99")


def replace(members: Members, path: str, old: str, new: str) -> None:
    """Replace lines that fit `old` in the one file whose path fits `path`."""
    (name,) = (member for member in members if re.search(path, member))
    text, count = re.subn(f"(?m)^(?:{old})$", new, members[name].decode())
    assert count, f"{name} has no line {old}"
    members[name] = text.encode()


BREAKS: Mapping[str, Break] = {
    "a patch dropped": Break(drop_a_patch, "test_platform.py", "switch"),
    "a kernel library missing": Break(drop_a_library, "test_wheel.py", "libraries"),
    "the second dist-info wrong": Break(
        falsify_the_second_version, "test_wheel.py", "registered_once"
    ),
    "a requirement raised": Break(raise_a_requirement, "test_wheel.py", "requirements"),
}


def main() -> int:
    """Break and test; 1 if something was not noticed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    names = parser.parse_args().names or list(BREAKS)
    if unknown := set(names) - set(BREAKS):
        print(f"error: {unknown}: expected some of {list(BREAKS)}", file=sys.stderr)
        return 2
    if not (BUILT / "run").is_file():
        print(f"error: {BUILT}: run make test-ascend first", file=sys.stderr)
        return 2
    wheel = build_wheel()
    cases = [BREAKS[name] for name in names]
    if (status := tests_with(wheel, lambda members: None, cases)) != PASSED:
        print(f"nothing broken: expected the tests to pass, they ended with {status}")
        return 1
    bad = []
    for name in names:
        print(f"{name} …", file=sys.stderr, flush=True)
        status = tests_with(wheel, BREAKS[name].edit, [BREAKS[name]])
        print(f"{name}: the tests ended with {status}", flush=True)
        bad += [name] * (status != FAILED)
    print(f"not noticed: {bad}" if bad else f"noticed: {len(names)} of {len(names)}")
    return bool(bad)


PASSED, FAILED = 0, 1
"""Exit statuses of pytest."""


def tests_with(wheel: Path, edit: Edit, cases: Sequence[Break]) -> int:
    """Install a changed copy of a wheel; the exit status of the tests of `cases`."""
    with tempfile.TemporaryDirectory(dir=BUILT.parent) as folder:
        out = Path(folder)
        changed = out / wheel.name
        with step(f"packing {wheel.name}, and installing it in a copy of {BUILT.name}"):
            rewrite(wheel, changed, edit)
            copy_environment(BUILT, out)
            install_wheel(out / "env", changed)
        # Not the program pytest: in a copy it names the interpreter of the original.
        command = [str(out / "run"), "python", "-P", "-m", "pytest", "-q"]
        command += ["--no-header", "--tb=line", "-p", "no:cacheprovider"]
        command += ["-W", "ignore"]
        command += ["-k", " or ".join(case.select for case in cases)]
        command += sorted({str(ROOT / "tests/ascend" / case.file) for case in cases})
        result = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        print("\n".join(result.stdout.splitlines()[-12:]), file=sys.stderr)
        remove_tree(out / "env")
    return result.returncode


def rewrite(wheel: Path, broken: Path, edit: Edit) -> None:
    """Write a changed copy of a wheel, with a RECORD that fits."""
    with ZipFile(wheel) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    edit(members)
    (record,) = (n for n in members if re.fullmatch(r"[^/]+\.dist-info/RECORD", n))
    table = io.StringIO()
    lines = csv.writer(table, lineterminator="\n")
    lines.writerows(
        line(name, data) for name, data in members.items() if name != record
    )
    lines.writerow([record, "", ""])
    members[record] = table.getvalue().encode()
    with ZipFile(broken, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def line(name: str, data: bytes) -> list[str]:
    """A file's line of RECORD."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return [name, f"sha256={digest.decode()}", str(len(data))]


if __name__ == "__main__":
    sys.exit(main())
