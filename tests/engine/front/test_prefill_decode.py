"""A prefill and a decode instance, real servers, and vLLM's example connector."""

import json
import random
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from hugging_face import Sample, continuations
from test_greedy_equality import assert_equal
from vllm_server import Server

RANKS = 2
BLOCK_SIZE = 32
CONCURRENCY = 16


def instance(folder: Path, model: Path, role: str, *more: str) -> Server:
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_role": role,
        "kv_connector_extra_config": {"shared_storage_path": f"{folder}/kv"},
    }
    options = ["--data-parallel-balance", "adaptive", "--no-enable-prefix-caching"]
    options += ["--block-size", str(BLOCK_SIZE), *more]
    options += ["--kv-transfer-config", json.dumps(connector)]
    return Server(Path(tempfile.mkdtemp(dir=folder)), model, *options, forked=True)


@contextmanager
def instances(folder: Path, model: Path) -> Iterator[tuple[Server, ...]]:
    with ExitStack() as stack:
        options = ("--data-parallel-size", str(RANKS), "--max-num-seqs", "2")
        yield tuple(
            stack.enter_context(instance(folder, model, role, *options))
            for role in ("kv_producer", "kv_consumer")
        )


@pytest.fixture(scope="module")
def samples(moe_model: Path) -> list[Sample]:
    """With first blocks of their own, and not one token longer than whole blocks:
    else the example takes them for equal, or looks for a block less than it has."""
    return drawn(moe_model, 40, 40, 110)


def drawn(model: Path, count: int, shortest: int, longest: int) -> list[Sample]:
    rng = random.Random(0)
    lengths = [x for x in range(shortest, longest) if x % BLOCK_SIZE != 1]
    prompts = [rng.choices(range(3, 250), k=rng.choice(lengths)) for _ in range(count)]
    answers = continuations(model, prompts)
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
    with instances(tmp_path, moe_model) as (prefill, decode):
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
    print(f"{loads} prompts loaded, held steps {held}, prompt tokens {computed}")
    assert loads >= len(prompts)
    assert sum(held[1].values()) == 0
    # A request that has ended counts as decoding for a step, with async scheduling.
    assert max(held[0].values()) <= 0.1 * min(decided[0].values())
    assert min(computed.values()) > 0.3 * sum(computed.values())
