"""A worker that computes nothing and waits as long as a cost model says.

Chosen by ``--additional-config '{"emulated_device": {...}}'``. Everything else is the
real server: HTTP, load balancer, coordinator, scheduler and balance gate. The ranks
exchange the load of every step through the data parallel group, and all of them wait
for the slowest, as the ranks of a mixture-of-experts model do. Only the model's
configuration and tokenizer are read; there are no weights.
"""

import random
import time
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from vllm.distributed.parallel_state import get_dp_group
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import (
    EMPTY_MODEL_RUNNER_OUTPUT,
    AsyncModelRunnerOutput,
    ModelRunnerOutput,
)
from vllm.v1.worker.gpu_worker import init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from vllm_balance.reference.emulated_config import OPTION, parse
from vllm_balance.simulator.step_time.model import Loads

TOKENS = 64
"""How many different tokens are generated, one after the other."""


@dataclass
class _Request:
    prompt_len: int
    generated: int = 0


class _Later(AsyncModelRunnerOutput):
    """An answer that is ready when the step has ended (asynchronous scheduling)."""

    def __init__(self, output: ModelRunnerOutput, end: float) -> None:
        self._output = output
        self._end = end

    def get_output(self) -> ModelRunnerOutput:
        _sleep_until(self._end)
        return self._output

    def get_kv_connector_output(self) -> None:
        """Nothing to salvage: later releases ask when a step fails."""


def _sleep_until(end: float) -> None:
    if (left := end - time.monotonic()) > 0:
        time.sleep(left)


class EmulatedDevice(WorkerBase):
    def init_device(self) -> None:
        torch.set_num_threads(1)
        self.device = torch.device("cpu")
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.local_rank,
            "gloo",
        )
        options = self.vllm_config.additional_config[OPTION]
        self._cost, self._scales = parse(options)
        self._group = get_dp_group()
        # Equal on all ranks, which draw once per step.
        self._rng = random.Random(0)
        self._requests: dict[str, _Request] = {}
        self._decode_steps = 0
        self._end = 0.0
        self._answer = EMPTY_MODEL_RUNNER_OUTPUT
        eos = self.model_config.hf_text_config.eos_token_id
        self._eos: int | None = eos[0] if isinstance(eos, list) else eos

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """There is no model."""

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        """One small layer: the scheduler counts its blocks, nobody fills them."""
        return {
            "emulated": FullAttentionSpec(
                block_size=self.cache_config.block_size,
                num_kv_heads=1,
                head_size=1,
                dtype=torch.float32,
            )
        }

    def determine_available_memory(self) -> int:
        """As much as the largest batch needs; --num-gpu-blocks-override for less."""
        spec = self.get_kv_cache_spec()["emulated"]
        blocks = -(-self.model_config.max_model_len // spec.block_size)
        slots = self.scheduler_config.max_num_seqs
        return (slots * blocks + 1) * spec.page_size_bytes

    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        """There is no cache."""

    def get_kv_connector_handshake_metadata(self) -> None:
        """Of a decode instance: no KV cache is moved."""

    def compile_or_warm_up_model(self) -> CompilationTimes:
        return CompilationTimes(0.0, 0.0)

    def reset_mm_cache(self) -> None:
        """There are no images."""

    reset_encoder_cache = reset_mm_cache

    def sleep(self, level: int = 1) -> None:
        """There is no memory to give back."""

    def wake_up(self, tags: list[str] | None = None) -> None:
        """There is no memory to take."""

    def execute_dummy_batch(self) -> None:
        """Begin one, at most one step ahead: nobody asks for its result."""
        before = self._end
        self._start_step(0, 0, 0, 0)
        _sleep_until(before if self.scheduler_config.async_scheduling else self._end)

    def execute_model(
        self, scheduler_output: SchedulerOutput
    ) -> ModelRunnerOutput | None:
        self._forget_and_learn(scheduler_output)
        if not scheduler_output.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        computed = self._computed_tokens(scheduler_output)
        prefill = decodes = context = attended = 0
        sampled: list[list[int]] = []
        for name, tokens in scheduler_output.num_scheduled_tokens.items():
            request = self._requests[name]
            known = request.prompt_len + request.generated
            if tokens == 1 and computed[name]:
                decodes += 1
                context += computed[name]
            else:
                prefill += tokens
                attended += tokens * (computed[name] + tokens // 2)
            complete = computed[name] + tokens >= known
            sampled.append([self._next_token(request)] if complete else [])
        names = list(scheduler_output.num_scheduled_tokens)
        self._answer = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        self._start_step(prefill, decodes, context, attended)
        return None

    def sample_tokens(
        self, grammar_output: Any
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        if self.scheduler_config.async_scheduling:
            return _Later(self._answer, self._end)
        _sleep_until(self._end)
        return self._answer

    def _start_step(self, *load: int) -> None:
        """Exchange the columns of `Loads`; the step starts when all ranks are there.

        With asynchronous scheduling, returns when the `launch` share of it is computed.
        """
        mine = torch.tensor(load, dtype=torch.int64)
        ranks = [torch.empty_like(mine) for _ in range(self._group.world_size)]
        dist.all_gather(ranks, mine, group=self._group.cpu_group)
        rows = [rank.tolist() for rank in ranks]
        loads = Loads(*([row[i] for row in rows] for i in range(len(load))))
        seconds = self._cost.noisy(self._cost.step_seconds(loads), self._rng)
        if any(loads.decodes):
            reached = [x for since, x in self._scales if since <= self._decode_steps]
            seconds *= reached[-1] if reached else 1.0
            self._decode_steps += 1
        self._end = max(time.monotonic(), self._end) + seconds
        if self._cost.launch and self.scheduler_config.async_scheduling:
            _sleep_until(self._end - (1 - self._cost.launch) * seconds)

    def _forget_and_learn(self, scheduler_output: SchedulerOutput) -> None:
        for name in scheduler_output.finished_req_ids:
            self._requests.pop(name, None)
        for new in scheduler_output.scheduled_new_reqs:
            self._requests[new.req_id] = _Request(len(new.prompt_token_ids or ()))

    @staticmethod
    def _computed_tokens(scheduler_output: SchedulerOutput) -> dict[str, int]:
        """Per request: tokens in the KV cache before the step."""
        cached = scheduler_output.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for new in scheduler_output.scheduled_new_reqs:
            computed[new.req_id] = new.num_computed_tokens
        return computed

    def _next_token(self, request: _Request) -> int:
        """One after the other, without the one that would end it."""
        request.generated += 1
        vocabulary: int = self.model_config.get_vocab_size()
        token = request.generated % min(TOKENS, vocabulary - 1)
        return token if token != self._eos else vocabulary - 1
