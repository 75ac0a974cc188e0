"""A repository for tests: our layout with tiny upstreams, and our tools in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from balance_tools.manifest import walk
from balance_tools.paths import Paths
from balance_tools.upstream.lock import Lock, dump_lock
from balance_tools.vendoring.vendor import vendor
from index_samples import SampleIndex, make_sdist

ROOT = Path(__file__).resolve().parents[3]

UPSTREAM = {
    "vllm/__init__.py": "",
    "vllm/version.py": "one = 1\ntwo = 2\nthree = 3\n",
    "vllm/v1/core/sched/scheduler.py": "class Scheduler:\n    pass\n",
    "setup.py": "",
}
PATCHED = UPSTREAM["vllm/version.py"] + "four = 4\n"
NEXT = {path: UPSTREAM[path] for path in ("vllm/__init__.py", "vllm/version.py")}
NEXT["vllm/added.py"] = "added\n"
"""The next release."""
ASCEND = {"vllm_ascend/__init__.py": "", "csrc/kernel.cpp": "int main() {}\n"}
OURS = "vllm/v1/core/sched/balance/rank/gate.py"
PATCH = """\
Description: Count to four.
Forwarded: no

--- a/vllm/version.py
+++ b/vllm/version.py
@@ -2,2 +2,3 @@
 two = 2
 three = 3
+four = 4
"""
IGNORE = """\
/build/
/tools/
/vllm_balance/
__pycache__/
/vllm/**
!/vllm/**/
!/vllm/v1/core/sched/balance/**
/vllm_ascend/**
"""


@dataclass
class SampleRepo:
    root: Path
    index: SampleIndex
    lock: Lock
    env: dict[str, str] = field(default_factory=dict)
    """Variables to add for a command."""

    @staticmethod
    def make(root: Path, index: SampleIndex) -> SampleRepo:
        vllm = index.add("vllm-0.23.0.tar.gz", make_sdist("vllm-0.23.0", UPSTREAM))
        ascend = index.add(
            "vllm_ascend-0.23.0.post1.tar.gz",
            make_sdist("vllm_ascend-0.23.0.post1", ASCEND),
        )
        repo = SampleRepo(root, index, Lock(vllm, ascend))
        repo.write(OURS, "# ours\n")
        repo.write("patches/vllm/series", "four.patch\n")
        repo.write("patches/vllm/four.patch", PATCH)
        repo.write("patches/vllm_ascend/series", "")
        repo.write(".gitignore", IGNORE)
        repo.write_lock()
        repo.git("init", "-q")
        repo.git("add", "-A")
        repo.git("commit", "-qm", "Start")
        return repo

    @property
    def paths(self) -> Paths:
        return Paths(self.root)

    def upgrade(self, files: Mapping[str, str]) -> None:
        sdist = make_sdist("vllm-0.24.0", files)
        self.lock = replace(self.lock, vllm=self.index.add("vllm-0.24.0.tar.gz", sdist))
        self.write_lock()

    def write_lock(self) -> None:
        self.write("upstream.toml", dump_lock(self.lock))

    def write(self, path: str, text: str) -> None:
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)

    def read(self, path: str) -> str:
        return (self.root / path).read_text()

    def tree(self, name: str = "vllm") -> dict[str, str]:
        """Path to text of all that lies in a vendored folder, the manifest left out."""
        folder = self.root / name
        return {
            path: (folder / path).read_text()
            for path in walk(folder)
            if path != ".vendor.json"
        }

    def vendor(self, **options: bool) -> list[str]:
        return vendor(self.paths, self.lock, ["vllm"], **options)

    def start(self, *args: str) -> subprocess.Popen[str]:
        return self.python("-m", "balance_tools", *args)

    def python(self, *args: str) -> subprocess.Popen[str]:
        skip = shutil.ignore_patterns("__pycache__")
        for package in ("tools/balance_tools", "vllm_balance"):
            if not (self.root / package).exists():
                shutil.copytree(ROOT / package, self.root / package, ignore=skip)
        return subprocess.Popen(
            [sys.executable, *args],
            env={**os.environ, "PYTHONPATH": str(self.root / "tools"), **self.env},
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *args: str) -> tuple[int, str, str]:
        process = self.start(*args)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def git(self, *args: str) -> str:
        settings = ["-c", "user.name=n", "-c", "user.email=e", "-c", "gc.auto=0"]
        return subprocess.run(
            ["git", *settings, *args],
            cwd=self.root,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
