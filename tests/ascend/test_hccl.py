"""HCCL on the emulated device: torch_npu's own process group, compared with gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("collectives.py")


def ranks_say(case: str, ranks: int, folder: Path, **environment: str) -> list[dict]:
    """What each rank printed; None for one that printed nothing. stderr as `log`."""
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), case, str(r), str(ranks), folder / "store"],
            env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for r in range(ranks)
    ]
    found = []
    try:
        for process in processes:
            out, log = process.communicate(timeout=120)
            said = json.loads(out.splitlines()[-1]) if out.strip() else {}
            found.append({**said, "log": log})
    finally:
        for process in processes:
            process.kill()
    return found


def test_collectives_equal_gloo(tmp_path):
    for rank in ranks_say("equal", 3, tmp_path):
        assert rank.get("wrong") == [], rank
        assert rank["checked"] == len(("f32", "bf16", "f16", "i64", "i32")) * 3 * 6 + 6


def test_send_and_receive(tmp_path):
    for rank in ranks_say("letters", 2, tmp_path):
        assert rank.get("wrong") == [], rank


def test_groups(tmp_path):
    found = ranks_say("groups", 4, tmp_path)
    assert [rank.get("pair") for rank in found] == [3, 3, 3, 3], found
    assert [rank["all"] for rank in found] == [6, 6, 6, 6]


def test_a_killed_peer_is_noticed_at_once_and_named(tmp_path):
    found = ranks_say("killed", 3, tmp_path)
    for rank in (found[0], found[2]):
        assert "rank 1 (process " in rank["log"], rank
        assert "died; it was waited for in all_reduce of 4 elements" in rank["log"]
        assert rank["error"], "no exception"
        assert rank["after_s"] < 10


def test_a_silent_peer_is_named_after_the_time_limit(tmp_path):
    found = ranks_say("silent", 3, tmp_path, HCCL_EXEC_TIMEOUT="3")
    for rank in (found[0], found[2]):
        assert "no answer from rank 1 (process " in rank["log"], rank
        assert rank["error"]


@pytest.mark.parametrize("rank", [0, 1])
def test_ranks_that_call_different_things_are_told_both(rank, tmp_path):
    found = ranks_say("different", 2, tmp_path)
    assert "all_reduce of 4 elements" in found[rank]["log"]
    assert "all_reduce of 8 elements" in found[rank]["log"]
    assert found[rank]["error"]
