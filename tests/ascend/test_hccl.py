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


def test_collectives_equal_gloo(tmp_path):
    for rank in ranks_say("equal", 3, tmp_path):
        assert rank.get("wrong") == [], rank
        assert rank["checked"] == 5 * 19 + 6, "five types, 19 each; six more"


def test_send_and_receive(tmp_path):
    for number, rank in enumerate(ranks_say("letters", 2, tmp_path)):
        assert rank.get("wrong") == [], rank
        assert rank["checked"] == (9 if number % 2 else 6)


@pytest.mark.parametrize("case", ["groups", "one after the other"])
def test_groups(case, tmp_path):
    found = ranks_say(case, 4, tmp_path)
    assert [rank.get("pair") for rank in found] == [3, 3, 3, 3], found
    assert [rank["all"] for rank in found] == [[6, 6]] * 4
    assert not any(rank.get("wrong") for rank in found), found


def test_a_killed_peer_is_noticed_and_named(tmp_path):
    found = ranks_say("killed", 3, tmp_path, lost=1)
    for rank in (found[0], found[2]):
        assert "rank 1 (process " in rank["log"], rank
        assert "died; it was waited for in all_reduce of 4 elements" in rank["log"]
        assert rank["error"], "no exception"


def test_a_silent_peer_is_named_after_the_time_limit(tmp_path):
    found = ranks_say("silent", 3, tmp_path, lost=1)
    for rank in (found[0], found[2]):
        assert "no answer from rank 1 (process " in rank["log"], rank
        assert rank["error"]


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_call_different_things_are_told_both(rank, tmp_path):
    found = ranks_say("different", 2, tmp_path)
    assert "all_reduce of 4 elements" in found[rank]["log"]
    assert "all_reduce of 8 elements" in found[rank]["log"]
    assert found[rank]["error"]
