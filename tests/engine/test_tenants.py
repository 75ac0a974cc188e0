"""Two tenants of a real server: one with many tiny requests, and the others."""

import json
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from hostile_clients import stream
from vllm_server import Server

BURSTS, TINY, EVERY_S = 4, 150, 10.0
OTHERS = 20
DEVICE = {"t0": 0.05, "a": 0.0, "b": 0.0007, "c": 0.0}


def others_wait(folder, model, policy: str) -> float:
    """Median time to first token of those who are not the tenant, in seconds."""
    options = (
        *("-dp", "2", "--data-parallel-balance", policy, "--max-num-seqs", "128"),
        *("--max-num-batched-tokens", "1024", "--max-model-len", "1024"),
        *("--no-enable-prefix-caching", "--async-scheduling"),
        *("--additional-config", json.dumps({"emulated_device": DEVICE})),
    )
    folder.mkdir()
    rng = random.Random(0)

    def tiny(server: Server, at: float) -> None:
        time.sleep(max(0.0, at - time.monotonic()))
        body = {"prompt": [5] * rng.randint(1, 20), "max_tokens": rng.randint(60, 200)}
        assert server.ask(**body).status_code == 200

    def other(server: Server, at: float) -> float:
        time.sleep(max(0.0, at - time.monotonic()))
        prompt = [rng.randrange(3, 200) for _ in range(rng.randint(500, 900))]
        first = stream(server, {"prompt": prompt, "max_tokens": 40})
        assert first is not None
        return first

    with (
        Server(folder, model, *options) as server,
        ThreadPoolExecutor(BURSTS * TINY + OTHERS) as pool,
    ):
        start = time.monotonic() + 1
        bursts = [start + n * EVERY_S for n in range(BURSTS) for _ in range(TINY)]
        tenant = [pool.submit(tiny, server, at) for at in bursts]
        last = BURSTS * EVERY_S
        times = [start + 1 + rng.uniform(0, last) for _ in range(OTHERS)]
        found = [pool.submit(other, server, at) for at in times]
        waits = [each.result() for each in found]
        for each in tenant:
            each.result()
    return statistics.median(waits)


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_many_cheap_decodes_do_not_hold_the_prompts_of_others(tmp_path, moe_model):
    off = others_wait(tmp_path / "off", moe_model, "off")
    adaptive = others_wait(tmp_path / "adaptive", moe_model, "adaptive")
    print(
        f"others' median time to first token: off {off:.2f}, adaptive {adaptive:.2f} s"
    )
    assert adaptive <= 2 * off + 0.5
