"""The same input gives the same bytes, wherever and however it is built."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from balance_tools.distribution import Choice
from conftest import HERE, ROOT

COPIED = (
    ".gitignore",
    "CMakeLists.txt",
    "LICENSE",
    "NOTICE",
    "advisories.toml",
    "distribution.toml",
    "patches",
    "pyproject.toml",
    "setup.py",
    "tools",
    "upstream.toml",
    "vllm",
    "vllm_ascend",
    "vllm_balance",
)


BUILD = """
import json, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from balance_tools.distribution import Choice
from balance_tools.paths import Paths
from balance_tools.wheel.build import _run_build
print(_run_build(Paths(Path(sys.argv[1])), Choice(**json.loads(sys.argv[2]))))
"""
# What a builder may have set for other packages.
SETTINGS = "[bdist_wheel]\ncompression = stored\n[build_py]\ncompile = 1\n"


def copy_sources(target: Path, umask: int = 0o022, linked: Sequence[str] = ()) -> Path:
    """A copy of all that setup.py reads, with modes as that umask gives them.

    The folders in `linked` are links to the originals, for tests that only read them.
    """
    target.mkdir(parents=True)
    for name in COPIED:
        source = ROOT / name
        ignore = shutil.ignore_patterns("__pycache__")
        if name in linked:
            (target / name).symlink_to(source)
        elif source.is_dir():
            shutil.copytree(source, target / name, ignore=ignore)
        elif source.is_file():
            shutil.copy2(source, target / name)
    for path in [path for path in target.rglob("*") if not path.is_symlink()]:
        path.chmod((0o777 if path.is_dir() else 0o666) & ~umask)
    (target / "build").mkdir()
    for name in ("pristine", "kernels"):
        if (ROOT / "build" / name).is_dir():
            (target / "build" / name).symlink_to(ROOT / "build" / name)
    return target


def build_in(root: Path, choice: Choice, umask: int, **variables: str) -> Path:
    """The wheel that is built in `root`, as `make wheel` does."""
    words = [str(root), json.dumps(asdict(choice)), str(ROOT / "tools")]
    made = subprocess.run(
        [sys.executable, "-c", BUILD, *words],
        env=os.environ | variables,
        umask=umask,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    return Path(made.stdout.strip())


def sha256(wheel: Path) -> str:
    return hashlib.sha256(wheel.read_bytes()).hexdigest()


def test_two_builds_are_identical(build, tmp_path):
    """The Ascend wheel, which has all that the reference wheel has."""
    choice = HERE
    build(choice)  # brings the trees and the kernels up to date
    one = copy_sources(tmp_path / "one", umask=0o022)
    other = copy_sources(tmp_path / "a longer name" / "other", umask=0o077)
    first = build_in(one, choice, umask=0o022, TZ="UTC", LC_ALL="C")
    (tmp_path / ".pydistutils.cfg").write_text(SETTINGS)
    hostile = {"TZ": "Asia/Tokyo", "PYTHONHASHSEED": "1", "SOURCE_DATE_EPOCH": ""}
    hostile |= {"SETUPTOOLS_USE_DISTUTILS": "stdlib", "HOME": str(tmp_path)}
    hostile |= {"DIST_EXTRA_CONFIG": str(tmp_path / ".pydistutils.cfg")}
    second = build_in(other, choice, umask=0o077, **hostile)
    assert sha256(first) == sha256(second)
