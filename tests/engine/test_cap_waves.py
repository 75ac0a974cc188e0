"""`cap` in real engine loops of several processes over gloo."""

import random

import pytest

from dp_loop import (
    AscendRuleEngine,
    CollectiveCounter,
    Ranks,
    burst,
    loop_arguments,
)


@pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("kv_blocks", [100, 18], ids=["roomy", "preempting"])
def test_cap_follows_the_vllm_ascend_rule_through_many_waves(
    moe_model, asynchronous, kv_blocks
):
    rng = random.Random(f"{asynchronous}{kv_blocks}")
    ranks = Ranks(
        3,
        AscendRuleEngine,
        **loop_arguments(
            moe_model,
            data_parallel_balance="cap",
            async_scheduling=asynchronous,
            additional_config={"kv_blocks": kv_blocks},
        ),
    )
    try:
        for wave in range(25):
            burst(ranks, rng, f"w{wave}", rng.randint(1, 40), aborts=wave % 4 == 3)
            ranks.poll()
            burst(ranks, rng, f"x{wave}", rng.randint(0, 10))
            ranks.drain()
        reports = ranks.stop()
    finally:
        ranks.kill()
    traces = [trace for trace, _ in reports]
    assert [leftover for _, leftover in reports] == [0, 0, 0]
    assert [trace.violations for trace in traces] == [[], [], []]
    assert traces[0].waves >= 25
    assert all(trace.closed > 50 for trace in traces), "the rule was hardly exercised"
    if kv_blocks == 18:
        assert sum(trace.preemptions for trace in traces) > 0


@pytest.mark.parametrize("policy", ["off", "cap"])
def test_off_makes_no_collective_call_that_upstream_does_not_make(moe_model, policy):
    ranks = Ranks(
        2, CollectiveCounter, **loop_arguments(moe_model, data_parallel_balance=policy)
    )
    try:
        for wave in range(3):
            burst(ranks, random.Random(wave), f"w{wave}", 20)
            ranks.drain()
        traces = [trace for trace, _ in ranks.stop()]
    finally:
        ranks.kill()
    for trace in traces:
        exchanges = trace.collectives.pop("alltoall_base", 0)
        assert (exchanges > 0) == (policy == "cap"), "the counter must see exchanges"
        assert trace.syncs >= 3
        syncs = trace.syncs
        # Two ranks of later releases sync by one message each way.
        messages = {"recv": syncs, "send": syncs}
        assert trace.collectives in ({"allreduce": syncs}, messages)
