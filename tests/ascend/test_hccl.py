"""HCCL on the emulated device: torch_npu's own process group, compared with gloo."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PROGRAM_S

PROGRAM = Path(__file__).with_name("collectives.py")


def ranks_say(ranks: int, folder: Path, lost: int = 0) -> list[tuple[str, str]]:
    """Output and log of each rank; rank 1, if a signal is for it, says nothing."""
    command = [sys.executable, str(PROGRAM), str(lost)]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(ranks), folder / "store"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(ranks)
    ]
    if lost:
        silent = processes.pop(1)
    try:
        return [process.communicate(timeout=PROGRAM_S) for process in processes]
    finally:
        for process in [*processes, silent] if lost else processes:
            process.kill()


def test_collectives_letters_and_groups_equal_gloo(tmp_path):
    for said, log in ranks_say(4, tmp_path):
        assert json.loads(said.splitlines()[-1]) == [], log


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (signal.SIGKILL, "died; it was waited for in all_reduce of 4 elements"),
        (signal.SIGSTOP, "no answer from rank 1 (process "),
    ],
)
def test_a_lost_peer_is_named(number, sentence, tmp_path):
    for _, log in ranks_say(3, tmp_path, number):
        assert "rank 1 (process " in log
        assert sentence in log
        assert "RuntimeError" in log
