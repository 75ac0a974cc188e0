"""Where no rank waits for another, `adaptive` gathers the prompts of each by itself."""

import contextlib
from types import SimpleNamespace

import pytest
from vllm import LLM, SamplingParams
from vllm.v1.core.sched.balance.rank.start import start_balance_gate
from vllm.v1.request import RequestStatus

from hugging_face import NEW_TOKENS
from schedulers import engine_config, make_scheduler, prompt_request, step
from test_greedy_equality import assert_all_served, assert_equal
from test_modes import DRAFTS, PIPELINE
from vllm_balance.core.policies import OPEN, Decision
from vllm_balance.core.policies.switch_ticket import next_ticket
from vllm_server import Server

ADAPTIVE = ("--data-parallel-balance", "adaptive")
HOLD = Decision(admit=False, prefill_budget=0, reason="waiting_cost")


def assert_each_decided(server, ranks):
    """By itself: there was no exchange."""
    decisions, exchanges = server.settled_metrics(
        "vllm:dp_balance_decisions_total", "vllm:dp_balance_exchange_seconds_count"
    )
    assert sorted(decisions) == list(range(ranks))
    assert min(decisions.values()) > 0
    assert sum(exchanges.values()) == 0


def test_the_ranks_of_a_dense_model(dense_model, dense_samples, tmp_path):
    with Server(tmp_path, dense_model, "-dp", "2", *ADAPTIVE) as server:
        assert_equal(server, dense_samples, concurrency=16)
        assert_all_served(server, 2)
        assert_each_decided(server, 2)
    assert "policy adaptive, this rank by itself" in server.log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        ("-tp", "2", "--num-gpu-blocks-override", "24", "--max-model-len", "320"),
        (*PIPELINE, "--scheduling-policy", "priority"),
        ("--no-enable-chunked-prefill", "--no-async-scheduling", *DRAFTS),
    ],
    ids=["tensor parallel, a cache that fills", "a pipeline, priorities", "drafts"],
)
def test_one_rank(options, moe_model, moe_samples, tmp_path):
    slots = ("--max-num-seqs", "8")
    with Server(tmp_path, moe_model, *slots, *ADAPTIVE, *options) as server:
        assert_equal(server, moe_samples, concurrency=16)
        assert_equal(server, moe_samples, concurrency=1)  # prefixes cached by now
        assert_each_decided(server, 1)


@contextlib.contextmanager
def in_this_process(model, **options):
    options |= {"max_num_seqs": 4, "max_model_len": 512, "enforce_eager": True}
    llm = LLM(model=str(model), **options)
    try:
        yield llm
    finally:
        llm.llm_engine.engine_core.shutdown()


def test_an_engine_in_the_process_of_its_caller(moe_model, moe_samples, monkeypatch):
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    options = {"data_parallel_balance": "adaptive", "disable_log_stats": False}
    with in_this_process(moe_model, **options) as llm:
        answers = llm.generate(
            [{"prompt_token_ids": list(sample.prompt)} for sample in moe_samples],
            SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True),
        )
        got = [tuple(answer.outputs[0].token_ids) for answer in answers]
        assert got == [tuple(sample.tokens) for sample in moe_samples]
        names = {metric.name: metric for metric in llm.get_metrics()}
        assert names["vllm:dp_balance_decisions"].value > 0


def test_a_seed_gives_one_answer_however_many_steps_a_prompt_takes(
    dense_model, monkeypatch
):
    """In-between steps draw no random numbers. A CPU's generator has no offset."""
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
    sampling = SamplingParams(temperature=1.0, seed=7, max_tokens=8, ignore_eos=True)
    answers = []
    for tokens in (512, 48):
        options = {"max_num_batched_tokens": tokens, "enable_prefix_caching": False}
        with in_this_process(dense_model, **options) as llm:
            found = llm.generate([{"prompt_token_ids": [*range(5, 205)]}], sampling)
            answers.append(found[0].outputs[0].token_ids)
    assert answers[0] == answers[1]


@pytest.fixture
def alone(moe_model):
    config = engine_config(moe_model, data_parallel_balance="adaptive")
    return make_scheduler(config)


def test_a_step_is_decided_from_the_rank_s_own_row(alone):
    gate, seen = alone.balance_gate, []

    def decide(snapshot):
        seen.append(snapshot)
        return HOLD if snapshot.pending[0] else OPEN

    gate.switch.policy = SimpleNamespace(
        decide=decide, reset=lambda: None, learned=None
    )
    start_balance_gate(SimpleNamespace(scheduler=alone, vllm_config=alone.vllm_config))
    alone.add_request(prompt_request("first", [1] * 30, 20))
    step(alone)
    gate.end_step()
    alone.add_request(prompt_request("second", [2] * 20, 20))
    gate.end_step()
    assert [row.pending for row in seen] == [(0,), (1,)]
    assert seen[-1].max_running == (alone.max_num_running_reqs,)
    step(alone)
    assert not alone.requests["second"].num_computed_tokens
    assert gate.held


def test_what_it_remembers_ends_with_its_last_request(alone):
    gate = alone.balance_gate
    alone.add_request(prompt_request("only", [1] * 30, 1))
    gate.apply(HOLD)
    gate.end_step()
    alone.finish_requests("only", RequestStatus.FINISHED_ABORTED)
    gate.end_step()
    assert gate.decision == OPEN


def test_it_is_switched_off_and_on(alone):
    gate, core = alone.balance_gate, SimpleNamespace()
    alone.add_request(prompt_request("only", [1] * 30, 20))
    for name in ("off", "adaptive"):
        newest = gate.request_policy(core)["ticket"]
        gate.request_policy(core, next_ticket(newest, name))
        step(alone)
        gate.end_step()
        assert gate.request_policy(core)["policy"] == name
