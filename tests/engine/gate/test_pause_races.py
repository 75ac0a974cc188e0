"""Pause, load weights, resume, again and again, while clients ask: nothing may hang."""

import json
import os
import random
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from vllm_server import Server

ROUNDS = int(os.environ.get("PAUSE_ROUNDS", "90"))
"""Ninety take a minute; before a release run 300."""
DEVICE = {"t0": 0.001, "a": 0.0, "b": 0.00002, "c": 0.001}
STOPS = [
    (f"/{verb}mode={mode}", resume)
    for verb, resume in (
        ("pause?", "/resume"),
        ("sleep?level=0&", "/wake_up?tags=scheduling"),
    )
    for mode in ("keep", "wait", "abort")
]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["off", "adaptive"])
def test_requests_and_resumes_may_race(tmp_path, moe_model, policy):
    """Each round: a request beside a resume of nobody; a stop of running and held
    prompts; a call of all workers; a request beside two resumes."""
    options = [
        "-dp",
        "2",
        "--data-parallel-balance",
        policy,
        "--max-num-seqs",
        "4",
        "--max-num-batched-tokens",
        "128",
        "--max-model-len",
        "1024",
        "--additional-config",
        json.dumps({"emulated_device": DEVICE}),
    ]
    rng, seen = random.Random(policy), Counter[str]()
    with (
        Server(tmp_path, moe_model, *options) as server,
        ThreadPoolExecutor(16) as pool,
    ):

        def ask(rank, prompt, tokens):
            answer = server.ask(rank, prompt=[5] * prompt, max_tokens=tokens)
            assert answer.status_code == 200, answer.text
            return str(answer.json()["choices"][0]["finish_reason"])

        def post(path, body=None):
            answer = server.post(path, body)
            assert answer.status_code == 200, (path, answer.text)

        def beside(path, times=1):
            rank = rng.choice((0, 0, 1))
            asked = pool.submit(ask, rank, 5, 4)
            time.sleep(rng.random() * 0.004)
            for _ in range(times):
                post(path)
            return asked

        for number in range(ROUNDS):
            stop, resume = STOPS[number % len(STOPS)]
            time.sleep(rng.choice((0, 0.05, 0.2)))  # amid a wave, at its end, idle
            asked = [beside("/resume")]
            asked += [
                pool.submit(ask, rng.randrange(2), *rng.choice(((5, 40), (500, 4))))
                for _ in range(rng.randrange(8))
            ]
            time.sleep(rng.random() * 0.02)
            post(stop)
            post("/collective_rpc", {"method": "reset_mm_cache"})
            asked.append(beside(resume, times=2))
            seen.update(f"{stop} {each.result()}" for each in asked)
    print(policy, dict(seen))
    aborted = {each for each in seen if each.endswith(" abort")}
    assert aborted <= {f"{stop} abort" for stop, _ in STOPS if "=abort" in stop}
    assert aborted, "nothing ran when it was stopped"
