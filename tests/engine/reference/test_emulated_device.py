"""The emulated device in a real server: it waits as its cost model says."""

import json
import random
import time
from types import SimpleNamespace

import pytest

from vllm_balance.reference import emulated_config
from vllm_balance.reference.emulated_device import EmulatedDevice
from vllm_server import Server

DEVICE = {"t0": 0.02, "a": 0.0, "b": 0.0005, "c": 0.0}
OPTIONS = (
    *("-dp", "2", "--async-scheduling", "--data-parallel-balance", "adaptive"),
    *("--max-num-seqs", "4", "--max-num-batched-tokens", "256"),
    *("--max-model-len", "1024", "--no-enable-prefix-caching"),
    # Fewer blocks than a batch needs.
    *("--block-size", "16", "--num-gpu-blocks-override", "66"),
)


@pytest.mark.parametrize("launch", [pytest.param(0.5, marks=pytest.mark.slow), 1.0])
def test_costs_are_learned_where_launches_block(tmp_path, moe_model, launch):
    """Taken for those of the step before, prompts would seem to take no time.

    Answers are beginnings of one text, also of what is preempted.
    """
    device = json.dumps({"emulated_device": DEVICE | {"launch": launch}})
    options = (*OPTIONS, "--additional-config", device)
    rng = random.Random(2)
    prompts = [[3 + i] * rng.randrange(5, 500) for i in range(60)]
    lengths = [rng.randrange(5, 40) for _ in prompts]
    with Server(tmp_path, moe_model, *options, forked=True) as server:
        answers = server.complete(prompts, lengths, 8, ignore_eos=False)
        cost = {
            part: server.metric("vllm:dp_balance_step_cost_seconds", part=part)[0]
            for part in ("decode", "own", "shared", "padding")
        }
        assert sum(server.metric("vllm:num_preemptions_total").values()) > 0
    print(cost)
    longest = max(answers, key=len)
    assert answers == [longest[:length] for length in lengths]
    assert 0.75 * 0.02 < cost["decode"] < 0.2
    assert cost["own"] + cost["shared"] + cost["padding"] > 0.75 * 256 * 0.0005


def test_dummy_steps_are_one_step_ahead_at_most():
    """Else who comes next waits for all that computed nothing."""
    device, seconds = object.__new__(EmulatedDevice), 0.05
    device.scheduler_config = SimpleNamespace(async_scheduling=True)
    device._end = time.monotonic()
    device._start_step = lambda *load: setattr(device, "_end", device._end + seconds)
    for _ in range(4):
        device.execute_dummy_batch()
        assert device._end - time.monotonic() <= seconds


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("fast", "give an object, not 'fast'"),
        ({"t0": 1}, "lacks a, b, c"),
        (DEVICE | {"speed": 1}, "unknown speed; choose from .*, phi, projection, t0"),
        (DEVICE | {"attention": 1e-9}, "unknown attention; choose from a, b, c"),
        (DEVICE | {"t0": -1}, "cost model: t0 is -1"),
        (DEVICE | {"launch": 2}, "cost model: launch is 2; give 0 to 1"),
    ],
)
def test_bad_option_is_refused(options, message):
    with pytest.raises(ValueError, match=f"emulated_device: .*{message}"):
        emulated_config.parse(options)


@pytest.mark.parametrize(
    ("world_size", "role", "message"),
    [(2, "kv_consumer", "--tensor-parallel-size"), (1, "kv_producer", "--kv-transfer")],
)
def test_what_it_cannot_emulate_is_refused(world_size, role, message):
    config = SimpleNamespace(
        additional_config={"emulated_device": DEVICE},
        parallel_config=SimpleNamespace(world_size=world_size),
        speculative_config=None,
        kv_transfer_config=SimpleNamespace(kv_role=role),
        use_v2_model_runner=False,
    )
    with pytest.raises(ValueError, match=message):
        emulated_config.check(config)
    config.parallel_config.world_size = 1
    config.kv_transfer_config.kv_role = "kv_consumer"
    emulated_config.check(config)
