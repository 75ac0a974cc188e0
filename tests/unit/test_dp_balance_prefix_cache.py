"""Which tokens of a prompt a rank has cached; the real schedulers agree elsewhere."""

from dataclasses import replace
from itertools import count

from vllm.benchmarks.dp_balance.rank.engine import RankLimits
from vllm.benchmarks.dp_balance.rank.limited import LimitedEngine
from vllm.benchmarks.dp_balance.rank.prefix_cache import PrefixCache, prompt_tokens
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.requests.workload import SimRequest
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload, simulate
from vllm.benchmarks.dp_balance.step_time.model import DEEPSEEK_V3_1

NUMBERS = count()


def request(prompt: int, *hash_ids: int, chunk_size: int = 16) -> SimRequest:
    made = SimRequest(next(NUMBERS), prompt, 1)
    made.hash_ids, made.chunk_size = hash_ids, chunk_size
    return made


def test_whole_blocks_of_an_equal_beginning_are_hits() -> None:
    cache = PrefixCache()
    assert cache.hit(request(100, 1, 2, 3)) == 0
    cache.store(request(100, 1, 2, 3), 100)
    assert cache.hit(request(100, 1, 2, 3, 4)) == 48
    assert cache.hit(request(100, 1, 2, 4)) == 32
    assert cache.hit(request(100, 2, 3)) == 0, "not at the beginning"


def test_the_last_token_is_always_computed() -> None:
    cache = PrefixCache()
    cache.store(request(48, 1, 2, 3), 48)
    assert cache.hit(request(48, 1, 2, 3)) == 32
    assert cache.hit(request(49, 1, 2, 3)) == 48


def test_chunks_of_several_blocks_are_cached_as_far_as_they_are_computed() -> None:
    cache = PrefixCache()
    cache.store(request(1200, 1, 2, chunk_size=512), 700)
    later = request(1200, 1, 2, chunk_size=512)
    assert cache.hit(later) == 512 + 176
    cache.store(later, 1200)
    assert cache.hit(later) == 1024


def test_tokens_are_equal_where_chunks_are() -> None:
    first, second = request(40, 1, 2), request(40, 1, 3)
    one, two = prompt_tokens(first), prompt_tokens(second)
    assert one[:16] == two[:16]
    assert not set(one[16:]) & set(two[16:])
    assert len(one) == len(two) == 40


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


def prefills(engine: LimitedEngine, *requests: SimRequest) -> list[int]:
    """Prompt tokens of the steps in which the requests are served."""
    for request in requests:
        engine.add(0, request)
    steps = []
    while engine.has_work():
        steps.append(engine.schedule().prefill[0])
        engine.update()
    return steps


def rank_with(kv_blocks: int) -> LimitedEngine:
    limits = RankLimits(1, 3, 100, 1 + kv_blocks)
    return LimitedEngine(limits, max_model_len=64, shared_prefixes=True)


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
