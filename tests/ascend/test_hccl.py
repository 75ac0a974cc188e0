"""HCCL on the emulated device: torch_npu's own process group, compared with gloo.

That a lost peer is named is in `test_serving`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

from conftest import PROGRAM_S

PROGRAM = Path(__file__).with_name("collectives.py")
RANKS = 4


def test_collectives_letters_and_groups_equal_gloo(tmp_path):
    processes = [
        subprocess.Popen(
            [sys.executable, PROGRAM, str(rank), str(RANKS), tmp_path / "store"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(RANKS)
    ]
    try:
        for process in processes:
            said, log = process.communicate(timeout=PROGRAM_S)
            assert json.loads(said.splitlines()[-1]) == [], log
    finally:
        for process in processes:
            process.kill()
