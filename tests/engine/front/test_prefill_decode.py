"""A prefill and a decode instance, real servers, and vLLM's example connector."""

import json
import random
import tempfile
from pathlib import Path

import pytest
from vllm.v1.core.sched.balance.rank.timing import EXCHANGE_EVERY_WHEN_OFF

from hugging_face import Sample, continuations
from test_greedy_equality import assert_equal
from vllm_server import Server

RANKS = 2
BLOCK_SIZE = 32
CONCURRENCY, STEPS = 16, 160


def instance(folder: Path, model: Path, role: str) -> Server:
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_role": role,
        "kv_connector_extra_config": {"shared_storage_path": f"{folder}/kv"},
    }
    options = ["--data-parallel-balance", "adaptive", "--no-enable-prefix-caching"]
    options += ["--block-size", str(BLOCK_SIZE), "-dp", str(RANKS)]
    options += ["--max-num-seqs", "2"]
    options += ["--kv-transfer-config", json.dumps(connector)]
    return Server(Path(tempfile.mkdtemp(dir=folder)), model, *options, forked=True)


@pytest.fixture(scope="module")
def samples(moe_model: Path) -> list[Sample]:
    """With first blocks of their own, and not one token longer than whole blocks:
    else the example takes them for equal, or looks for a block less than it has."""
    rng = random.Random(0)
    lengths = [x for x in range(40, 110) if x % BLOCK_SIZE != 1]
    prompts = [rng.choices(range(3, 250), k=rng.choice(lengths)) for _ in range(40)]
    answers = continuations(moe_model, prompts)
    return [
        Sample(tuple(prompt), tuple(answer))
        for prompt, answer in zip(prompts, answers, strict=True)
        if answer
    ]


def test_hardly_anything_is_held_where_nobody_decodes_and_nothing_that_arrives(
    moe_model, samples, tmp_path
):
    assert len(samples) > 2 * CONCURRENCY
    prompts = [sample.prompt for sample in samples]
    with (
        instance(tmp_path, moe_model, "kv_producer") as prefill,
        instance(tmp_path, moe_model, "kv_consumer") as decode,
    ):
        first = prefill.complete(prompts, [1] * len(prompts), CONCURRENCY)
        assert first == [list(sample.tokens[:1]) for sample in samples]
        assert_equal(decode, samples, CONCURRENCY)
        decided = [
            server.metric("vllm:dp_balance_decisions_total")
            for server in (prefill, decode)
        ]
        for decisions in decided:
            assert sorted(decisions) == list(range(RANKS))
            assert min(decisions.values()) > 0
        names = ("vllm:dp_balance_held_steps_total", "vllm:prompt_tokens_total")
        held = [server.metric(names[0]) for server in (prefill, decode)]
        computed = prefill.metric(names[1])
        loads = decode.log.read_text().count("External Cache Hit!")
        counted = "vllm:dp_balance_exchange_seconds_count"
        (before,) = decode.settled_metrics(counted)
        decode.complete([[5] * 40] * 2, STEPS, concurrency=2)
        (after,) = decode.settled_metrics(counted)
    print(f"{loads} prompts loaded, held steps {held}, prompt tokens {computed}")
    assert loads >= len(prompts)
    assert sum(held[1].values()) == 0
    exchanges = [after[rank] - before[rank] for rank in range(RANKS)]
    assert min(exchanges) > 0
    assert max(exchanges) <= STEPS / EXCHANGE_EVERY_WHEN_OFF + 3
    # A request that has ended counts as decoding for a step, with async scheduling.
    assert max(held[0].values()) <= 0.1 * min(decided[0].values())
    assert min(computed.values()) > 0.3 * sum(computed.values())
