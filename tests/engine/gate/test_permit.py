"""The allowance of prompt tokens in the real scheduler, chunked prefill on and off."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st
from vllm.config import LoRAConfig
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.request import RequestStatus

from schedulers import (
    BLOCK_SIZE,
    WORKLOADS,
    make_request,
    make_scheduler,
    measure,
    prompt_request,
    rank_config,
    step,
    steps_of,
)
from vllm_balance.core.policies.decision import Decision

DRAFTS = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}


def allow(scheduler, tokens):
    """What a policy decides that grants that number of prompt tokens; 0 is a hold."""
    decision = Decision(admit=tokens > 0, prefill_budget=tokens, reason="test")
    scheduler.balance_gate.apply(decision)


def scheduled(scheduler, tokens):
    """Tokens by request of a step with that allowance."""
    allow(scheduler, tokens)
    return step(scheduler).num_scheduled_tokens


def add(scheduler, *requests, **arguments):
    for name, prompt in requests:
        scheduler.add_request(make_request(name, prompt, 20, **arguments))


def test_chunks_and_admissions_share_the_allowance(scheduler):
    add(scheduler, ("long", 50), ("second", 20), ("third", 20))
    assert scheduled(scheduler, 30) == {"long": 30}
    assert scheduled(scheduler, 25) == {"long": 20, "second": 5}
    assert scheduled(scheduler, 15) == {"long": 1, "second": 15}
    assert scheduler.balance_gate.held, "the third had to wait"
    assert scheduled(scheduler, 60) == {"long": 1, "second": 1, "third": 20}
    assert not scheduler.balance_gate.held


def test_without_chunked_prefill_a_prompt_is_whole_or_held(moe_model):
    whole = {"enable_chunked_prefill": False, "max_num_batched_tokens": 256}
    scheduler = make_scheduler(rank_config(moe_model, **whole))
    add(scheduler, ("first", 100), ("second", 100), ("third", 100))
    assert scheduled(scheduler, 0) == {}
    assert scheduled(scheduler, 150) == {"first": 100, "second": 100}
    assert scheduled(scheduler, 1) == {"first": 1, "second": 1, "third": 100}


def test_a_threshold_for_long_prompts_still_holds(moe_model):
    """From 0.31 on not for a request that is alone."""
    scheduler = make_scheduler(rank_config(moe_model, long_prefill_token_threshold=16))
    add(scheduler, ("long", 100), ("second", 100))
    assert scheduled(scheduler, 40) == {"long": 16, "second": 16}
    assert scheduled(scheduler, 8) == {"long": 8}


def test_a_decode_that_is_padded_for_its_drafts_is_whole_or_held(moe_model):
    """From 0.25 on a hit that leaves one token: cut shorter, it ended the engine."""
    config = rank_config(
        moe_model, enable_prefix_caching=True, speculative_config=DRAFTS
    )
    prompt = [5] * (2 * BLOCK_SIZE + 1)
    as_upstream = {}
    for tokens in (None, 0, 2):
        scheduler = make_scheduler(config)
        scheduler.add_request(prompt_request("first", prompt, 1))
        step(scheduler)
        scheduler.add_request(prompt_request("again", prompt, 20))
        if tokens is None:
            as_upstream = step(scheduler).num_scheduled_tokens
            assert as_upstream["again"] in (1, 1 + DRAFTS["num_speculative_tokens"])
        else:
            expected = as_upstream if tokens else {}
            assert scheduled(scheduler, tokens) == expected


def test_what_is_cached_of_a_prompt_was_not_loaded(moe_model):
    """Little is left of it, and the allowance counts all the same."""
    scheduler = make_scheduler(rank_config(moe_model, enable_prefix_caching=True))
    for name, tokens in (("first", 42), ("again", 4)):
        scheduler.add_request(prompt_request(name, [5] * (2 * BLOCK_SIZE + 10), 1))
        assert scheduled(scheduler, tokens) == {name: tokens}


def test_a_loaded_request_is_let_pass_unless_it_has_an_adapter(moe_model):
    """An adapter too many ended the engine when the held prompts went on."""
    config = rank_config(moe_model, long_prefill_token_threshold=16)
    config.lora_config = LoRAConfig(max_loras=2, max_lora_rank=8, max_cpu_loras=2)
    scheduler = make_scheduler(config)
    for each in (1, 2):
        adapter = LoRARequest(str(each), each, "/none")
        add(scheduler, (f"adapter {each}", 100), lora_request=adapter)
    assert len(scheduled(scheduler, 64)) == 2
    add(scheduler, ("held", 100))
    assert scheduled(scheduler, 0) == {"adapter 1": 1}
    for adapter in (None, LoRARequest("3", 3, "/none")):
        loaded = make_request("loaded", 60, 5, lora_request=adapter)
        loaded.num_computed_tokens = 48
        assert scheduler.balance_gate.holds(loaded) is bool(adapter)


def test_a_blocked_request_is_promoted_while_nothing_is_allowed(scheduler):
    request = make_request("grammar", 10, 5)
    request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
    request.structured_output_request = type("Compiled", (), {"grammar": object()})()
    scheduler.add_request(request)
    assert scheduled(scheduler, 0) == {}
    assert request.status == RequestStatus.WAITING
    allow(scheduler, 64)
    assert scheduler.schedule().num_scheduled_tokens == {"grammar": 10}


def test_a_stream_that_waits_for_input_is_not_counted_as_held(scheduler):
    request = make_request("stream", 10, 5)
    request.status = RequestStatus.WAITING_FOR_STREAMING_REQ
    scheduler.add_request(request)
    assert scheduled(scheduler, 0) == {}
    assert not scheduler.balance_gate.held
    row = measure(scheduler.balance_gate, wave=0, step=1, now=1.0)
    assert (row.waiting, row.pending) == (1, 0)


@settings(max_examples=25)
@given(
    workload=WORKLOADS,
    num_blocks=st.sampled_from([18, 30, 100]),
    asynchronous=st.booleans(),
    seed=st.integers(0, 99),
)
def test_no_step_exceeds_its_allowance_and_everything_ends(
    config, workload, num_blocks, asynchronous, seed
):
    rng = random.Random(seed)
    scheduler_class = AsyncScheduler if asynchronous else Scheduler
    scheduler = make_scheduler(config, scheduler_class, num_blocks)
    for _ in steps_of(scheduler, workload):
        decoding = {r.request_id for r in scheduler.running if not r.is_prefill_chunk}
        fresh = {r.request_id for r in scheduler.requests.values()} - decoding
        begun = any(request.is_prefill_chunk for request in scheduler.running)
        allowance = rng.choice([0, 0, 1, 16, 64])
        allow(scheduler, allowance)
        output = step(scheduler)
        tokens = output.num_scheduled_tokens
        prefills = {name: n for name, n in tokens.items() if name in fresh}
        at_least = 1 if tokens == prefills else 0  # instead of a dummy step
        assert sum(prefills.values()) <= max(allowance, at_least)
        assert tokens or not begun, "a dummy step"
        if not output.preempted_req_ids:
            assert decoding <= set(tokens), "a decode was held"
