"""HCCL on the emulated device: torch_npu's own process group, compared with gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import PROGRAM_S

PROGRAM = Path(__file__).with_name("collectives.py")


def ranks_say(case: str, ranks: int, folder: Path, lost: int = -1) -> list[dict]:
    """The JSON that each rank printed, if it did, and its stderr as `log`.

    A rank that is `lost` says nothing; it is killed when the others have ended.
    """
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), case, str(r), str(ranks), folder / "store"],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(ranks)
    ]
    found = []
    try:
        for rank, process in enumerate(processes):
            if rank == lost:
                found.append({})
                continue
            out, log = process.communicate(timeout=PROGRAM_S)
            said = [line for line in out.splitlines() if line.startswith("{")]
            found.append({**(json.loads(said[-1]) if said else {}), "log": log})
    finally:
        for process in processes:
            process.kill()
    return found


def test_collectives_letters_and_groups_equal_gloo(tmp_path):
    for number, rank in enumerate(ranks_say("all", 4, tmp_path)):
        assert rank.get("wrong") == [], rank
        # Five types, 19 each, and six more; a receive and a ring of three sizes.
        assert rank["checked"] == [5 * 19 + 6, 9 if number % 2 else 6]
        assert (rank["pair"], rank["all"]) == (3, [6, 6])


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("killed", "died; it was waited for in all_reduce of 4 elements"),
        ("silent", "no answer from rank 1 (process "),
    ],
)
def test_a_lost_peer_is_named(case, sentence, tmp_path):
    found = ranks_say(case, 3, tmp_path, lost=1)
    for rank in (found[0], found[2]):
        assert "rank 1 (process " in rank["log"], rank
        assert sentence in rank["log"]
        assert rank["error"], "no exception"


def test_ranks_that_call_different_things_are_told_both(tmp_path):
    for rank in ranks_say("different", 2, tmp_path):
        assert "all_reduce of 4 elements" in rank["log"]
        assert "all_reduce of 8 elements" in rank["log"]
        assert rank["error"]
