"""Times `recommend` of this tree and of another one, and compares their figures.

`python bench/speed.py TREE [ROUNDS]` runs the first example of docs/operations.md with
both in turn; `git worktree add TREE REVISION` makes the other one.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

EXAMPLE = (
    "recommend --data-parallel-size 4 --max-num-seqs 64 --input-len lognormal:600:1 "
    "--output-len lognormal:300:0.8 --cost-preset a2-dp4-tp4 --request-rate 2"
)
OLD = "import argparse, pure_vllm; from vllm.benchmarks.dp_balance import cli; " + (
    "p = argparse.ArgumentParser(); cli.add_cli_args(p); cli.main(p.parse_args())"
)
"""Runs a revision whose simulator was below `vllm/`."""


def timed(tree: Path, file: Path) -> tuple[float, Any]:
    """Processor seconds of the example with a tree's sources, and its results."""
    is_old = not (tree / "vllm_balance" / "simulator").exists()
    program = ["-c", OLD] if is_old else ["-m", "vllm_balance"]
    saved = ["--save-result", "--result-dir", file.parent, "--result-filename", file]
    paths = f"{tree}{os.pathsep}{tree / 'bench'}"
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(
        [sys.executable, *program, *EXAMPLE.split(), *map(str, saved)],
        env=os.environ | {"PYTHONPATH": paths},
        cwd=tree,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return seconds, json.loads(file.read_text())["results"]


if __name__ == "__main__":
    trees = Path(sys.argv[1]).resolve(), Path(__file__).resolve().parents[1]
    ratios = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(int(sys.argv[2]) if sys.argv[2:] else 3):
            (a, old), (b, new) = [timed(tree, Path(folder, "r")) for tree in trees]
            ratios.append(a / b)
            differ = [x["policy"] for x, y in zip(old, new, strict=True) if x != y]
            print(f"{a:.1f} and {b:.1f} s: {a / b:.2f} times; differ: {differ}")
    print(f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})")
