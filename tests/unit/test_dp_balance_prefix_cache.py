"""Which tokens of a prompt a rank has cached; the real schedulers agree elsewhere."""

from dataclasses import replace
from itertools import count

from vllm.benchmarks.dp_balance.rank.engine import Engine
from vllm.benchmarks.dp_balance.rank.limits import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.requests.workload import SimRequest
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload, simulate
from vllm.benchmarks.dp_balance.step_time.model import DEEPSEEK_V3_1

NUMBERS = count()


def request(prompt: int, *hash_ids: int, chunk_size: int = 16) -> SimRequest:
    made = SimRequest(next(NUMBERS), prompt, 1)
    made.hash_ids, made.chunk_size = hash_ids, chunk_size
    return made


def prefills(engine: Engine, *requests: SimRequest) -> list[int]:
    """Prompt tokens of the steps in which the requests are served."""
    for request in requests:
        engine.add(0, request)
    steps = []
    while engine.has_work():
        steps.append(engine.schedule().prefill[0])
        engine.update()
    return steps


def rank_with(kv_blocks: int | None = None) -> Engine:
    """A rank of three slots, and of so many blocks if not of endless ones."""
    limits = RankLimits(1, 3, 100, kv_blocks and 1 + kv_blocks)
    return Engine(limits, max_model_len=64, shared_prefixes=True)


def test_whole_blocks_of_an_equal_beginning_are_hits() -> None:
    engine = rank_with()
    assert prefills(engine, request(100, 1, 2, 3)) == [100]
    assert prefills(engine, request(100, 1, 2, 3, 4)) == [100 - 48]
    assert prefills(engine, request(90, 1, 2, 4)) == [90 - 32]
    assert prefills(engine, request(80, 2, 3)) == [80], "not at the beginning"


def test_the_last_token_is_always_computed() -> None:
    engine = rank_with()
    assert prefills(engine, request(48, 1, 2, 3)) == [48]
    assert prefills(engine, request(48, 1, 2, 3)) == [16]
    assert prefills(engine, request(49, 1, 2, 3)) == [1]


def test_chunks_of_several_blocks_are_cached_as_far_as_they_are_computed() -> None:
    engine = rank_with()
    first, second = (request(250, 1, 2, chunk_size=120) for _ in range(2))
    engine.add(0, first)
    assert engine.schedule().prefill[0] == 100
    engine.add(0, second)
    assert engine.schedule().prefill[0] == 100
    assert engine.exchange(0, 1, 0.0).pending_tokens[0] == 50 + 250 - 12 * 16
    assert engine.schedule().prefill[0] == 50 + 10, "all whole blocks by then"


def test_hits_are_not_computed() -> None:
    scenario = Scenario(
        RankLimits(2, 8, 1024),
        DEEPSEEK_V3_1,
        Workload(300, "1000", "20", prefix_share=0.9, num_prefixes=4),
        ClientTraffic(max_concurrency=16),
    )
    computed = {}
    for share in (0.0, 0.5, 0.9):
        workload = replace(scenario.workload, prefix_share=share)
        run = simulate(replace(scenario, workload=workload), "off")
        computed[share] = sum(step.prefill for step in run.steps) / 300_000
    assert computed[0.0] == 1.0
    assert 0.5 < computed[0.5] < 0.53
    assert 0.1 < computed[0.9] < 0.14


def test_blocks_stay_cached_until_they_are_needed_the_oldest_first() -> None:
    engine = rank_with(6)
    assert prefills(engine, request(64, 1, 2, 3, 4)) == [64]
    assert prefills(engine, request(64, 1, 2, 3, 4)) == [16], "the last token's block"
    # Two blocks were never used, and the last of the text is the oldest of the others.
    assert prefills(engine, request(48)) == [48]
    assert prefills(engine, request(64, 1, 2, 3, 4)) == [16]
    assert prefills(engine, request(16 * 5)) == [80]
    assert prefills(engine, request(64, 1, 2, 3, 4)) == [48]


def test_cached_blocks_that_are_hit_are_no_longer_free() -> None:
    engine = rank_with(5)
    assert prefills(engine, request(48, 1, 2, 3)) == [48]
    steps = prefills(engine, request(49, 1, 2, 3), request(32))
    assert steps == [1, 32], "the second finds one block free, until the first ends"


def test_a_preempted_request_finds_what_is_left_of_its_own() -> None:
    first, second = request(16), request(31)
    first.output_len = second.output_len = 20
    steps = prefills(rank_with(4), first, second)
    # Preempted in step 3, when two of its blocks are full; the first takes the later.
    assert [(step, tokens) for step, tokens in enumerate(steps) if tokens] == [
        (0, 47),
        (20, 33 - 16),
    ]
