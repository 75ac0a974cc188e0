"""Several API servers of a host choose ranks as one does."""

import json
import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from vllm_balance.core.dispatch import TO_COMPUTE, Dispatch
from vllm_server import Server

pytestmark = [pytest.mark.slow, pytest.mark.ci]

RANKS, SLOTS = 4, 64
DEVICE = {"t0": 0.5, "a": 0.0, "b": 0.0, "c": 0.0}
OPTIONS = (
    "-dp",
    f"{RANKS}",
    "--api-server-count",
    f"{RANKS}",
    # So that nothing is held, and the prompts that come first are computed first.
    "--data-parallel-balance",
    "off",
    "--data-parallel-dispatch",
    "tokens",
    "--max-num-seqs",
    f"{SLOTS}",
    "--max-num-batched-tokens",
    f"{SLOTS}",
    "--max-model-len",
    "2048",
    "--no-enable-prefix-caching",
    "--enable-log-requests",  # says which were sent to a rank
    "--additional-config",
    json.dumps({"emulated_device": DEVICE}),
)
SENT_S = 60
"""How long a server may take to send one."""
FIRST = [2000, 1960, 1930, 1890]
"""Prompts that keep each rank busy until all others have come: 15 s."""


def segments():
    """Of `multiprocessing`, if they have a name."""
    return {path.name for path in Path("/dev/shm").glob("pym-*")}


def test_each_request_goes_where_one_server_that_knows_all_would_send_it(
    moe_model, tmp_path
):
    """Also while another one is stopped. A kill leaves no memory of theirs behind."""
    before, rng = segments(), random.Random(2)
    lengths = [rng.randrange(20, 500) for _ in range(40)]
    dispatch, expected = Dispatch(RANKS, SLOTS), [0] * RANKS
    for number, length in enumerate([*FIRST, *lengths]):
        if number >= RANKS:
            loads = [a + TO_COMPUTE.request * b for a, b in dispatch.own]
            assert loads.count(min(loads)) == 1, "a tie: each server breaks it its way"
        rank = number if number < RANKS else dispatch.choose()
        dispatch.sent(number, rank, length)
        expected[rank] += length
    with (
        Server(tmp_path, moe_model, *OPTIONS) as server,
        ThreadPoolExecutor(len(FIRST) + len(lengths)) as pool,
    ):
        name = "vllm:prompt_tokens_total"
        (start,) = server.settled_metrics(name)
        asked = []

        def ask(length, rank=None):
            asked.append(
                pool.submit(server.ask, rank, prompt=[5] * length, max_tokens=1)
            )
            # The next one comes when this one has its rank.
            deadline = time.monotonic() + SENT_S
            while server.log.read_text().count("Added request") < len(asked):
                assert time.monotonic() < deadline, "it was not sent to a rank"
                time.sleep(0.01)

        for rank, length in enumerate(FIRST):
            ask(length, rank)
        titles = {each.cmdline()[0]: each for each in server.processes()}
        stopped = titles["VLLM::APIServer_2"]
        for number, length in enumerate(lengths):
            if number == 10:
                stopped.send_signal(signal.SIGSTOP)
            ask(length)
        stopped.send_signal(signal.SIGCONT)
        assert not any(each.done() for each in asked), "it was too slow to send them"
        assert {each.result().status_code for each in asked} == {200}
        (end,) = server.settled_metrics(name)
        found = [end[rank] - start.get(rank, 0) for rank in range(RANKS)]
        assert found == expected
        server.kill()
    assert segments() <= before
