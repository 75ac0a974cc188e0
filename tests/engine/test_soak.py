"""The memory of an engine core does not depend on how long it has run."""

import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_memory_is_flat_while_nobody_takes_the_reports():
    """A short version of `bench/soak.py`, whose own length is a million steps."""
    command = [sys.executable, BENCH / "soak.py", "--steps", "20000"]
    done = subprocess.run(
        command, cwd=BENCH, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "'steps': 20000" in done.stdout
