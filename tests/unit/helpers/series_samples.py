"""Small sample trees and series, made with real quilt or written out by hand."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
QUILTRC = ROOT / "tools" / "quiltrc"

HEADER = """\
Description: Sample hook for the tests
 Continued on a second line.
Origin: vendor
Forwarded: not-needed
Last-Update: 2026-01-02
Relies-On: pkg.other:helper
Relies-On: pkg.other:Engine.step is called once a step
Removal-Plan: when the sample is no longer needed

"""

ENGINE = b'''\
"""Sample upstream module."""
from pkg.interface import Base


class Engine(Base):
    def __init__(self, config):
        self.limit = config.limit
        self.running = []

    def loop(self):
        while self.handle_shutdown():
            executed = self.step()
            if not executed:
                continue

            # 3) All-reduce.
            self.active = self.sync(
                executed
            )

            if not self.active:
                self.wave += 1

        raise SystemExit

    def sync(self, executed):
        return executed
'''


def quilt(
    patches: Path, tree: Path, *arguments: str, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run real quilt with the project's settings, or skip the test without it."""
    if shutil.which("quilt") is None:
        pytest.skip("no quilt: install Debian's quilt")
    return subprocess.run(
        ["quilt", *arguments],
        cwd=tree,
        env={
            **os.environ,
            "QUILTRC": str(QUILTRC),
            "QUILT_PATCHES": str(patches),
            "EDITOR": "false",
        },
        check=check,
        capture_output=True,
        text=True,
    )


def make_patch(
    patches: Path,
    tree: Path,
    name: str,
    changes: dict[str, bytes | None],
    header: str = HEADER,
) -> None:
    """Add a patch on top with real quilt; None deletes a file."""
    patches.mkdir(parents=True, exist_ok=True)
    quilt(patches, tree, "new", name)
    for path, content in changes.items():
        quilt(patches, tree, "add", path)
        if content is None:
            (tree / path).unlink()
        else:
            (tree / path).parent.mkdir(parents=True, exist_ok=True)
            (tree / path).write_bytes(content)
    quilt(patches, tree, "refresh")
    patch = patches / name
    patch.write_bytes(header.encode() + patch.read_bytes())


def pristine(tree: Path, patches: Path) -> None:
    """Take every patch off again and remove quilt's own folder."""
    quilt(patches, tree, "pop", "-a")
    shutil.rmtree(tree / ".pc")


def sample(tmp_path: Path) -> tuple[Path, Path]:
    """Return (patches, pristine tree) with two patches on one module."""
    made = Path(_sample_made_once().name)
    for name in ("patches", "tree"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path / "patches", tmp_path / "tree"


@cache
def _sample_made_once() -> tempfile.TemporaryDirectory[str]:
    directory = tempfile.TemporaryDirectory()
    tree, patches = Path(directory.name) / "tree", Path(directory.name) / "patches"
    (tree / "pkg").mkdir(parents=True)
    (tree / "pkg" / "engine.py").write_bytes(ENGINE)
    (tree / "pkg" / "other.py").write_bytes(b"def helper():\n    return 1\n")
    once = ENGINE.replace(
        b"        self.running = []\n",
        b"        self.running = []\n        self.gate = Gate.create(config)\n",
    ).replace(
        b"pkg.interface import Base\n",
        b"pkg.interface import Base\nfrom pkg.balance import Gate\n",
    )
    make_patch(patches, tree, "gate.patch", {"pkg/engine.py": once})
    twice = once.replace(
        b"            )\n\n            if not self.active",
        b"            )\n            self.gate.exchange(self.active)\n\n"
        b"            if not self.active",
    )
    new_file = b"class Gate:\n    pass\n"
    make_patch(
        patches,
        tree,
        "exchange.patch",
        {"pkg/engine.py": twice, "pkg/balance.py": new_file},
    )
    pristine(tree, patches)
    return directory


def contents(tree: Path) -> dict[str, bytes]:
    """Every file of a tree with its bytes."""
    return {
        str(path.relative_to(tree)): path.read_bytes()
        for path in sorted(tree.rglob("*"))
        if path.is_file()
    }
