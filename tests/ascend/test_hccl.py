"""HCCL on the emulated device: torch_npu's own process group, compared with gloo."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("collectives.py")


def ranks_say(case: str, ranks: int, folder: Path, **environment: str) -> list[dict]:
    """The JSON that each rank printed, if it did, and its stderr as `log`."""
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
            out, log = process.communicate(timeout=600)
            said = [line for line in out.splitlines() if line.startswith("{")]
            found.append({**(json.loads(said[-1]) if said else {}), "log": log})
    finally:
        for process in processes:
            process.kill()
    return found


@pytest.fixture(scope="module")
def values(tmp_path_factory) -> list[dict]:
    """What four ranks say, from one start of each."""
    return ranks_say("values", 4, tmp_path_factory.mktemp("values"))


def test_collectives_equal_gloo(values):
    for rank in values:
        assert rank.get("equal", {}).get("wrong") == [], rank
        assert rank["equal"]["checked"] == 5 * 19 + 6, "five types, 19 each; six more"


def test_send_and_receive(values):
    for number, rank in enumerate(values):
        assert rank.get("letters", {}).get("wrong") == [], rank
        assert rank["letters"]["checked"] == (9 if number % 2 else 6)


def test_groups(values):
    assert [rank.get("groups") for rank in values] == [{"pair": 3, "all": 6}] * 4


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
