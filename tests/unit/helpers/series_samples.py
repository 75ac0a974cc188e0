"""Small sample trees and series, made with real quilt or written out by hand."""

import os
import shutil
import subprocess
from functools import partial
from pathlib import Path

import pytest

from balance_tools.series.apply import patched_files

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


def quilt(patches, tree, *arguments):
    """Run real quilt with the project's settings, or skip the test without it."""
    if shutil.which("quilt") is None:
        pytest.skip("no quilt: install Debian's quilt")
    own = {"QUILTRC": str(QUILTRC), "QUILT_PATCHES": str(patches), "EDITOR": "false"}
    run = partial(subprocess.run, check=True, capture_output=True, text=True)
    return run(["quilt", *arguments], cwd=tree, env=os.environ | own)


def make_patch(patches, tree, name, changes):
    patches.mkdir(parents=True, exist_ok=True)
    quilt(patches, tree, "new", name)
    for path, content in changes.items():
        quilt(patches, tree, "add", path)
        (tree / path).write_bytes(content)
    quilt(patches, tree, "refresh")
    patch = patches / name
    patch.write_bytes(HEADER.encode() + patch.read_bytes())


def pristine(tree, patches):
    quilt(patches, tree, "pop", "-a")
    shutil.rmtree(tree / ".pc")


def apply_series(series, tree):
    for path, content in patched_files(series, tree).items():
        (tree / path).write_bytes(content)


def contents(tree):
    return {
        str(path.relative_to(tree)): path.read_bytes()
        for path in sorted(tree.rglob("*"))
        if path.is_file()
    }
