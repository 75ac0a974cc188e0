"""The ranks' real schedulers and balance gates in virtual time: the simulator's oracle.

Nothing is computed: the model runner's answer is made up, one token for every request
whose prompt is complete, and with speculation as many more as the request says. No two
requests get the same. The rows go from gate to gate without a process group.
"""

import json
import tempfile
from collections import Counter, deque
from pathlib import Path
from typing import NamedTuple

import pytest
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.balance.rank.reads import limits_of
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

from schedulers import (
    BLOCK_SIZE,
    drafted_by,
    engine_config,
    give_gate,
    make_scheduler,
    measure,
    prompt_request,
)
from vllm_balance.core.policies.rows import Snapshot
from vllm_balance.simulator import scenario as simulated
from vllm_balance.simulator.rank.counts import RankCounts
from vllm_balance.simulator.rank.engine import Engine
from vllm_balance.simulator.rank.scheduler import NOTHING, Outcome
from vllm_balance.simulator.requests.request import SimRequest

_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 1,
    "num_hidden_layers": 1,
    "vocab_size": 256,
    "torch_dtype": "float32",
}
"""A configuration that the schedulers ask for; there are no weights."""


class _Scheduled(NamedTuple):
    first: list[SimRequest]
    """Requests that get their first token."""
    output: SchedulerOutput | None
    """None if there was no request."""
    answer: ModelRunnerOutput | None
    wasted: int = 0
    """Tokens of decodes that bring none of an answer."""


class _Rank:
    calm_until = step = 0  # all steps are scheduled

    def __init__(self, config, num_blocks, short_first, is_limited):
        self._is_limited = is_limited
        self._asynchronous = config.scheduler_config.async_scheduling
        self.scheduler = make_scheduler(
            config,
            AsyncScheduler if self._asynchronous else Scheduler,
            num_blocks,
            log_stats=False,
        )
        self._drafts = self.scheduler.num_spec_tokens
        # Neither the gate's policy nor its exchange is asked: the simulator carries
        # the rows, and one policy decides for all ranks.
        self.gate = give_gate(self.scheduler, "adaptive", short_first=short_first)
        self.requests: dict[str, SimRequest] = {}
        self._generated: Counter[str] = Counter()
        """Output tokens by request, those of steps in flight too."""
        self._in_flight: deque[_Scheduled] = deque()

    def add(self, request):
        name, prompt = str(request.index), prompt_tokens(request)
        self.requests[name] = request
        self.scheduler.add_request(
            prompt_request(name, prompt, request.output_len, arrival_time=request.sent)
        )

    @property
    def held(self):
        """Whether an admissible request was held back in the step."""
        return self.gate.held

    def has_work(self):
        unfinished: bool = self.scheduler.has_unfinished_requests()
        return unfinished

    def counts(self):
        """What the rank tells the coordinator."""
        running, waiting = self.scheduler.get_request_counts()
        usage = self.scheduler.kv_cache_manager.usage if self._is_limited else 0.0
        return RankCounts(waiting, running, usage)

    def output_tokens(self, request):
        """Tokens of the answer that have come from the scheduler."""
        served = self.scheduler.requests.get(str(request.index))
        return 0 if served is None else served.num_output_tokens

    def schedule(self):
        if not self.scheduler.has_requests():
            self._in_flight.append(_Scheduled([], None, None))
            return 0, 0, 0, 0.0, 0
        requests = self.scheduler.requests
        output = self.scheduler.schedule()
        prefill = decodes = context = wasted = positions = 0
        attended = 0.0
        first: list[SimRequest] = []
        sampled: list[list[int]] = []
        for name, tokens in output.num_scheduled_tokens.items():
            request = requests[name]
            complete = not request.is_prefill_chunk
            # Scheduling has advanced both counts already.
            before = request.num_computed_tokens - tokens
            sent, generated = self.requests[name], self._generated[name]
            known = sent.prompt_len + generated
            if generated and before >= known - 1:
                decodes += tokens
                context += known - 1  # drafts in flight are not all accepted
            elif tokens == 1 and before:
                decodes += 1
                context += before
            else:
                prefill += tokens
                attended += tokens * (before + tokens / 2)
                positions += before
            left = sent.output_len - generated
            drafts = output.scheduled_spec_decode_tokens.get(name, ())
            assert len(drafts) in (0, self._drafts), "drafts are not cut"
            accepted = next(sent.drafts) if drafts and left else 0
            sampled.append([own_token(sent)] * (1 + accepted) if complete else [])
            gain = min(left, len(sampled[-1]))
            self._generated[name] += gain
            wasted += 1 + len(drafts) - gain if complete else 0
            if complete and not generated:
                first.append(sent)
        names = list(output.num_scheduled_tokens)
        answer = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: index for index, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        self._in_flight.append(_Scheduled(first, output, answer, wasted))
        return prefill, decodes, context, attended, positions

    def update(self):
        first, output, answer, wasted = self._in_flight.popleft()
        if output is None or answer is None:
            return NOTHING
        answers = self.scheduler.update_from_output(output, answer)
        if self._drafts and not self._asynchronous:
            drafts = [[0] * self._drafts] * len(answer.req_ids)
            self.scheduler.update_draft_token_ids(DraftTokenIds(answer.req_ids, drafts))
        done = [
            self.requests.pop(output.request_id)
            for per_client in answers.values()
            for output in per_client.outputs
            if output.finish_reason is not None
        ]
        return Outcome(first, done, wasted)

    def measure(self, wave, step, now):
        return measure(self.gate, wave, step, now)

    def apply(self, decision):
        self.gate.apply(decision)

    def end_wave(self):
        """Forgets the decision, the holds, and steps without requests."""
        self._in_flight.clear()
        self.gate.reset()


class RealEngine(Engine):
    def __init__(
        self,
        limits,
        max_model_len,
        async_scheduling,
        prefix_blocks,
        short_first,
    ):
        """The schedulers; `prefix_blocks` are all that shared prompts fill."""
        limits.check_longest(max_model_len)
        drafts = limits.num_speculative_tokens
        max_model_len += 3 * drafts + 2 * bool(drafts)  # so that none is cut
        enough = prefix_blocks or limits.max_num_seqs * -(-max_model_len // BLOCK_SIZE)
        blocks = limits.kv_blocks or enough + 1  # vLLM keeps a null block
        with tempfile.TemporaryDirectory() as folder:
            model = _MODEL | {"max_position_embeddings": max_model_len}
            Path(folder, "config.json").write_text(json.dumps(model))
            config = engine_config(
                Path(folder),
                max_num_seqs=limits.max_num_seqs,
                max_num_batched_tokens=limits.max_num_batched_tokens,
                max_model_len=max_model_len,
                async_scheduling=async_scheduling and not drafts,
                enable_prefix_caching=prefix_blocks is not None,
                speculative_config=_ngrams(drafts) if drafts else None,
            )
        if drafts:
            drafted_by(config, "mtp")
            config.scheduler_config.async_scheduling = async_scheduling
        self._ranks = [
            _Rank(config, blocks, short_first, bool(limits.kv_blocks))
            for _ in range(limits.ranks)
        ]
        self._limits = [limits_of(rank.scheduler) for rank in self._ranks]

    def exchange(self, wave, step, now):
        rows = [rank.measure(wave, step, now) for rank in self._ranks]
        return Snapshot.from_rows(rows, self._limits)


def _ngrams(drafts):
    return {"method": "ngram", "num_speculative_tokens": drafts, "prompt_lookup_max": 2}


def real_engine(scenario, requests):
    lengths = [request.prompt_len + request.output_len for request in requests]
    shares = any(request.hash_ids for request in requests)
    return RealEngine(
        scenario.limits,
        max(lengths),
        scenario.async_scheduling,
        sum(-(-length // BLOCK_SIZE) + 2 for length in lengths) if shares else None,
        bool(scenario.short_first),
    )


def simulate_real(scenario, policy, seed=0, **arguments):
    """As `simulate`, with real schedulers and gates."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(simulated, "make_engine", real_engine)
        return simulated.simulate(scenario, policy, seed, **arguments)


def prompt_tokens(request):
    """Token ids that are equal exactly where prompts share chunks."""
    shared = [
        hash_id * request.chunk_size + i
        for hash_id in request.hash_ids
        for i in range(request.chunk_size)
    ][: request.prompt_len]
    return shared + [own_token(request)] * (request.prompt_len - len(shared))


def own_token(request):
    """The token of which the rest of its prompt, and its answer, consist."""
    return -1 - request.index
