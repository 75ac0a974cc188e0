"""The row says what upstream's scheduler would do next, in the states of special models
and requests. `test_pending.py` has those of plain ones, and more of each."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pytest
import torch
from vllm.config import LoRAConfig
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorMetadata
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import (
    ExampleConnector,
)
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager
from vllm.v1.core.sched.balance.policies.decision import OPEN, Decision
from vllm.v1.kv_cache_interface import MambaSpec, SlidingWindowSpec
from vllm.v1.outputs import DraftTokenIds, KVConnectorOutput
from vllm.v1.request import RequestStatus

from bare_schedulers import FULL_ATTENTION
from schedulers import (
    BLOCK_SIZE,
    engine_config,
    make_scheduler,
    step,
    steps_of_any_size,
)
from test_pending import nothing_cached, prompt_request, row_of, upstream_prefills

WINDOW = SlidingWindowSpec(
    block_size=BLOCK_SIZE,
    num_kv_heads=1,
    head_size=8,
    dtype=torch.float32,
    sliding_window=48,
)
MAMBA = MambaSpec(
    block_size=BLOCK_SIZE,
    shapes=((8, 32),),
    dtypes=(torch.float32,),
    mamba_cache_mode="align",
)


@dataclass(frozen=True)
class State:
    """One kind of scheduler and of requests."""

    layers: tuple[Any, ...] = (FULL_ATTENTION,)
    arguments: dict[str, Any] = field(default_factory=dict)
    configure: Callable[[Any], None] = lambda config: None
    prepare: Callable[[Any], None] = lambda scheduler: None
    new_request: Callable[..., Any] = prompt_request
    before_step: Callable[[Any, random.Random], None] = lambda scheduler, rng: None
    tokens: bool = True
    """Whether a step can be made so large that it computes all pending tokens."""
    in_doubt: float = 0.0
    """Share of the steps in which the row may say that something is pending, and
    upstream starts nothing."""


def align_mamba(config: Any) -> None:
    config.cache_config.mamba_cache_mode = "align"
    config.cache_config.block_size = BLOCK_SIZE


def two_adapters(config: Any) -> None:
    config.lora_config = LoRAConfig(max_loras=2, max_lora_rank=8, max_cpu_loras=2)


def with_adapter(name: str, prompt: list[int], output: int, **arguments: Any) -> Any:
    number = prompt[-1] % 5
    adapter = LoRARequest(f"adapter-{number}", number, "/nowhere") if number else None
    return prompt_request(name, prompt, output, lora_request=adapter, **arguments)


def whole_encoder_items(scheduler: Any) -> None:
    scheduler.scheduler_config.disable_chunked_mm_input = True
    scheduler.max_num_encoder_input_tokens = 100
    scheduler.encoder_cache_manager = EncoderCacheManager(cache_size=200)


def with_items(name: str, prompt: list[int], output: int, **arguments: Any) -> Any:
    """A request with items of 20 tokens, as many as there is room for."""
    items = [
        MultiModalFeatureSpec(
            data=None,
            modality="image",
            identifier=f"{name}-{offset}",
            mm_position=PlaceholderRange(offset=offset, length=20),
        )
        for offset in range(prompt[-1] % 30, len(prompt) - 20, 40)
    ]
    return prompt_request(name, prompt, output, mm_features=items, **arguments)


def draft(scheduler: Any, rng: random.Random) -> None:
    """Draft tokens for what decodes; `step` accepts none of them."""
    ids = [r.request_id for r in scheduler.running if not r.is_prefill_chunk]
    drafts = [[5] * rng.randint(0, 3) for _ in ids]
    scheduler.update_draft_token_ids(DraftTokenIds(ids, drafts))


def input_stream(name: str, prompt: list[int], output: int, **arguments: Any) -> Any:
    return prompt_request(name, prompt, output, resumable=True, **arguments)


def more_input(scheduler: Any, rng: random.Random) -> None:
    """The next part of some inputs, or their end."""
    for request in list(scheduler.requests.values()):
        waits = request.status == RequestStatus.WAITING_FOR_STREAMING_REQ
        if waits and rng.random() < 0.3:
            more = [rng.randrange(90) for _ in range(rng.randint(1, 60))]
            last = rng.random() < 0.3 or request.num_tokens > 120
            part = prompt_request(request.request_id, more, 3, resumable=not last)
            scheduler.add_request(part)


class Store(ExampleConnector):
    """Finds the start of a prompt somewhere else, from nothing to all but a token.

    The prompt's last token says how much. It is loaded at once, or later; some requests
    must be asked for again.
    """

    def get_num_new_matched_tokens(self, request, num_computed_tokens):
        kind = request.prompt_token_ids[-1] % 5
        if kind == 4 and request.request_id not in self._asked:
            self._asked.add(request.request_id)
            return None, False
        found = len(request.prompt_token_ids) * kind // 4
        whole = (len(request.prompt_token_ids) - 1) // BLOCK_SIZE * BLOCK_SIZE
        found = max(
            0, min(found // BLOCK_SIZE * BLOCK_SIZE, whole) - num_computed_tokens
        )
        return found, bool(found) and self._later

    @cached_property
    def _asked(self) -> set[str]:
        return set()

    @property
    def _later(self) -> bool:
        return self._kv_transfer_config.get_from_extra_config("later", False)

    def update_state_after_alloc(self, request, blocks, num_external_tokens):
        """Nothing to load: there is no worker."""

    def build_connector_meta(self, scheduler_output):
        """Nothing to tell one."""
        return KVConnectorMetadata()


def connected(later: bool) -> dict[str, Any]:
    return {
        "kv_transfer_config": {
            "kv_connector": Store.__name__,
            "kv_connector_module_path": __name__,
            "kv_role": "kv_both",
            "kv_connector_extra_config": {
                "shared_storage_path": "/nowhere",
                "later": later,
            },
        }
    }


def some_arrive(scheduler: Any, rng: random.Random) -> None:
    """Some of the loads end."""
    loading = {
        request.request_id
        for request in scheduler.requests.values()
        if request.status == RequestStatus.WAITING_FOR_REMOTE_KVS
        and request.request_id not in scheduler.finished_recving_kv_req_ids
        and rng.random() < 0.4
    }
    scheduler._update_from_kv_xfer_finished(KVConnectorOutput(finished_recving=loading))


SPECULATION = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}
PRIORITIES = {"scheduling_policy": "priority"}

STATES = {
    "full attention and sliding window": State(
        layers=(FULL_ATTENTION, WINDOW), in_doubt=0.01
    ),
    "sliding window": State(layers=(WINDOW,)),
    "two sliding windows, priorities": State(
        layers=(WINDOW, FULL_ATTENTION, WINDOW), arguments=PRIORITIES, in_doubt=0.01
    ),
    "mamba align": State(
        layers=(FULL_ATTENTION, MAMBA), configure=align_mamba, tokens=False
    ),
    "adapters": State(configure=two_adapters, new_request=with_adapter),
    "adapters, priorities": State(
        configure=two_adapters, new_request=with_adapter, arguments=PRIORITIES
    ),
    "encoder items": State(
        prepare=whole_encoder_items, new_request=with_items, tokens=False, in_doubt=0.1
    ),
    "speculation": State(arguments=SPECULATION, before_step=draft),
    "speculation and sliding window": State(
        layers=(FULL_ATTENTION, WINDOW),
        arguments=SPECULATION,
        before_step=draft,
        in_doubt=0.01,
    ),
    "input streams": State(new_request=input_stream, before_step=more_input),
    "a connector that loads at once": State(
        arguments=connected(False), tokens=False, in_doubt=0.01
    ),
    "a connector that loads later": State(
        arguments=connected(True), before_step=some_arrive, tokens=False, in_doubt=0.04
    ),
    "a connector, priorities": State(
        arguments=connected(True) | PRIORITIES,
        before_step=some_arrive,
        tokens=False,
        in_doubt=0.08,
    ),
    "long prompts in parts": State(
        arguments={"long_prefill_token_threshold": 20}, tokens=False
    ),
    "many slots": State(arguments={"max_num_seqs": 24, "max_num_batched_tokens": 96}),
}


def scheduler_of(model: Any, state: State, num_blocks: int) -> Any:
    config = engine_config(
        model,
        data_parallel_size=2,
        data_parallel_balance="cap",
        **{"enable_prefix_caching": True, "async_scheduling": False} | state.arguments,
    )
    state.configure(config)
    scheduler = make_scheduler(config, num_blocks=num_blocks, layers=state.layers)
    state.prepare(scheduler)
    return scheduler


def compare(scheduler: Any, state: State, rng: random.Random, hit_rate: float) -> Any:
    """60 steps; how often the row and upstream said what, and tokens that hit."""
    said: Counter[Any] = Counter()
    for number in range(60):
        for index in range(rng.choice([0, 0, 1, 3])):
            length = rng.randint(1, 200)
            shared = int(length * hit_rate)
            prompt = [1] * shared + rng.choices(range(2, 90), k=length - shared)
            name = f"{number}-{index}"
            output = rng.randint(1, 20)
            priority = rng.randint(0, 2)
            request = state.new_request(name, prompt, output, priority=priority)
            scheduler.add_request(request)
        state.before_step(scheduler, rng)
        row = row_of(scheduler, now=float(number))
        if rng.random() < 0.5:
            budget = rng.choice([0, 0, 5, 40, None])
            decision = Decision(admit=budget != 0, prefill_budget=budget, reason="t")
            scheduler.balance_gate.apply(decision)
            step(scheduler)
            continue
        scheduler.balance_gate.apply(OPEN)
        chunks = any(request.is_prefill_chunk for request in scheduler.running)
        if state.tokens and not chunks and rng.random() < 0.3:
            said["tokens"] += tokens_are_true(scheduler, row)
            continue
        prefilled = bool(upstream_prefills(scheduler))
        said[row.pending > 0, prefilled] += 1
        said["waiting, not pending"] += bool(row.waiting and not row.pending)
        assert row.pending or not prefilled, (number, row)
        assert row.pending_tokens >= row.pending
    return said


def tokens_are_true(scheduler: Any, row: Any) -> bool:
    """Whether tokens were compared: in a step that has room for all of them, finds
    nothing that it computes itself, and evicts nothing that the row has counted on."""
    cached = scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block
    before = len(cached)
    with nothing_cached(scheduler), steps_of_any_size(scheduler):
        done = upstream_prefills(scheduler)
    if len(cached) != before or len(done) != row.pending:
        return False
    assert abs(row.pending_tokens - sum(done.values())) <= BLOCK_SIZE * len(done)
    return bool(done)


@pytest.mark.parametrize("name", STATES)
def test_something_is_pending_exactly_if_upstream_would_prefill(moe_model, name):
    state, said = STATES[name], Counter()
    for seed in range(2):
        for num_blocks in (30, 60, 300):
            for hit_rate in (0.0, 0.5, 0.9):
                scheduler = scheduler_of(moe_model, state, num_blocks)
                rng = random.Random(f"{seed}{num_blocks}{hit_rate}")
                said += compare(scheduler, state, rng, hit_rate)
    print(name, dict(said))
    steps = said[True, True] + said[False, False] + said[True, False]
    assert said[True, True] > steps / 10
    assert said["waiting, not pending"] > steps / 100
    assert said[True, False] <= state.in_doubt * steps
    assert (said["tokens"] > 5) == state.tokens


@pytest.mark.parametrize(
    ("name", "least"),
    [("mamba align", BLOCK_SIZE), ("encoder items", 20)],
)
def test_a_budget_below_the_smallest_unit_is_rounded_up_and_charged(
    moe_model, name, least
):
    """Whatever part upstream can run next, 5 tokens start or continue something, and
    what was scheduled is charged: the next prompt of the step waits."""
    scheduled = Counter()
    for seed in range(6):
        rng = random.Random(seed)
        scheduler = scheduler_of(moe_model, STATES[name], num_blocks=300)
        for index in range(4):
            prompt = rng.choices(range(2, 90), k=rng.randint(80, 200))
            request = STATES[name].new_request(f"{index}", prompt, 3)
            scheduler.add_request(request)
        while scheduler.requests:
            row = row_of(scheduler)
            decision = Decision(admit=True, prefill_budget=5, reason="test")
            scheduler.balance_gate.apply(decision)
            decodes = {
                r.request_id for r in scheduler.running if not r.is_prefill_chunk
            }
            tokens = step(scheduler).num_scheduled_tokens
            prefills = [n for each, n in tokens.items() if each not in decodes]
            assert bool(prefills) == (row.pending > 0), row
            assert sum(prefills[:-1]) < 5, "more was let pass than the budget"
            assert row_of(scheduler).prefill_tokens == sum(prefills)
            scheduled.update(prefills)
    print(name, dict(scheduled))
    assert scheduled[least] > 50, "hardly a part was rounded up"
