"""Times `recommend` of this tree beside that of another revision, and compares figures.

`python bench/speed.py REVISION` runs the first example of docs/operations.md with both
in turn.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
EXAMPLE = shlex.split(
    "recommend --data-parallel-size 4 --max-num-seqs 64 --input-len lognormal:600:1 "
    "--output-len lognormal:300:0.8 --cost-preset a2-dp4-tp4 --request-rate 2"
)
BEFORE_THE_MOVE = """
import argparse, pure_vllm
from vllm.benchmarks.dp_balance import cli
parser = argparse.ArgumentParser()
cli.add_cli_args(parser)
cli.main(parser.parse_args())
"""
"""Runs a revision whose simulator was below `vllm/`."""


class Run(NamedTuple):
    """What one took, in seconds and MiB of its largest process, and what it found."""

    user: float
    wall: float
    memory: float
    found: Any


def timed(tree: Path, folder: Path) -> Run:
    """Runs the example with the sources of a tree."""
    is_moved = (tree / "vllm_balance" / "simulator").exists()
    how = ["-m", "vllm_balance"] if is_moved else ["-c", BEFORE_THE_MOVE]
    saved = ["--save-result", "--result-dir", str(folder), "--result-filename", "found"]
    paths = os.pathsep.join([str(tree), str(tree / "bench")])
    start = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, *how, *EXAMPLE, *saved],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": paths},
        stdout=subprocess.DEVNULL,
    )
    _, status, used = os.wait4(process.pid, 0)
    wall = time.monotonic() - start
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        sys.exit(f"{tree}: {' '.join(EXAMPLE)} ended with {process.returncode}.")
    found = json.loads((folder / "found").read_text(encoding="utf-8"))
    kept = {name: found[name] for name in ("results", "gains", "advice")}
    return Run(used.ru_utime + used.ru_stime, wall, used.ru_maxrss / 1024, kept)


def main() -> None:
    """Prints how many times as long the other revision takes, round by round."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("revision", help="of git, to compare with")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        other = Path(name, "tree")
        other.mkdir()
        archive = ["git", "-C", str(ROOT), "archive", options.revision]
        packed = subprocess.run(archive, check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", str(other)], check=True, input=packed)
        rounds = []
        for number in range(options.rounds):
            rounds.append([timed(tree, Path(name)) for tree in (other, ROOT)])
            for tree, run in zip((options.revision, "this"), rounds[-1], strict=True):
                print(
                    f"{number + 1}: {tree}: {run.user:.1f} s of processor, "
                    f"{run.wall:.1f} s, {run.memory:.0f} MiB"
                )
    for figure in ("user", "wall"):
        ratios = sorted(getattr(a, figure) / getattr(b, figure) for a, b in rounds)
        middle = statistics.median(ratios)
        print(f"{figure}: {middle:.2f} times ({ratios[0]:.2f} to {ratios[-1]:.2f})")
    if any(theirs.found != ours.found for theirs, ours in rounds):
        sys.exit("The figures differ.")
    print("The figures are the same.")


if __name__ == "__main__":
    main()
