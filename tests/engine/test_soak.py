"""The memory of an engine core does not depend on how long it has run."""

import os
import subprocess
import sys
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"


def test_memory_is_flat_while_nobody_takes_the_reports():
    """A short version of the part `memory` of `bench/costs.py`: a million steps."""
    command = [sys.executable, BENCH / "costs.py", "memory", "--calls", "20000"]
    environment = {**os.environ}
    environment.pop("PYTHONSAFEPATH", None)  # it imports files beside it
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "'steps': 20000" in done.stdout
