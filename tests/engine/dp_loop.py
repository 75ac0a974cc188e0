"""Real data parallel engine loops in processes of their own.

Each rank runs upstream's `DPEngineCoreProc.run_busy_loop` with a real scheduler, the
real balance gate and a real gloo group; this module plays the coordinator and the
front-end. A `LoopEngine` has a stand-in for the model, which answers every decode with
token 7, so that thousands of steps take seconds; a `ModelEngine` has the model.
"""

import logging
import multiprocessing
import queue
import random
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch.distributed as dist
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest, EngineCoreRequestType, FinishReason
from vllm.v1.engine.core import DPEngineCoreProc, EngineCore, EngineShutdownState
from vllm.v1.executor.abstract import Executor
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

BLOCK_SIZE = 16


class StandInExecutor(Executor):
    """Answers at once: one token for every request whose prompt is complete."""

    def _init_executor(self) -> None:
        self.dummy_batches = 0
        self.scheduler: Any = None

    def get_kv_cache_specs(self):
        import torch

        spec = FullAttentionSpec(
            block_size=BLOCK_SIZE, num_kv_heads=1, head_size=8, dtype=torch.float32
        )
        return [{"layer": spec}]

    def determine_available_memory(self):
        blocks = self.vllm_config.additional_config["kv_blocks"]
        return [blocks * self.get_kv_cache_specs()[0]["layer"].page_size_bytes]

    def initialize_from_config(self, kv_cache_configs):
        return None

    def get_supported_kv_cache_layouts(self):  # of later releases, as the next two
        return [["LBHNC"]]

    def set_kv_cache_layout(self, *layout):
        return None

    def compile_or_warm_up_model(self):
        return None

    def collective_rpc(self, method, *args, **kwargs):
        return [None]

    def check_health(self):
        return None

    def execute_model(self, scheduler_output, non_block=False):
        ids = list(scheduler_output.num_scheduled_tokens)
        requests = self.scheduler.requests
        self._output = ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={req_id: index for index, req_id in enumerate(ids)},
            sampled_token_ids=[
                [] if requests[req_id].is_prefill_chunk else [7] for req_id in ids
            ],
        )
        return _done(None if ids else EMPTY_MODEL_RUNNER_OUTPUT)

    def sample_tokens(self, grammar_output, non_block=False):
        return _done(self._output) if non_block else self._output

    def execute_dummy_batch(self):
        self.dummy_batches += 1


def _done(value):
    future: Future = Future()
    future.set_result(value)
    return future


@dataclass
class Trace:
    """What one rank saw, collected in its own process."""

    steps: list[tuple[Any, ...]] = field(default_factory=list)
    """Per schedule(): (request ids, tokens each, newly admitted ids)."""
    violations: list[str] = field(default_factory=list)
    closed: int = 0
    """Exchanges after which admission was closed."""
    collectives: Counter[str] = field(default_factory=Counter)
    """Calls of torch.distributed by name (`CollectiveCounter` only)."""
    syncs: int = 0
    """Finish-syncs of upstream (`CollectiveCounter` only)."""
    waves: int = 0
    finished: int = 0
    preemptions: int = 0


class LoopEngine(DPEngineCoreProc):
    """`DPEngineCoreProc` without sockets: queues in, queues out."""

    executor: type[Executor] = StandInExecutor

    def __init__(self, vllm_config: VllmConfig, trace: Trace) -> None:
        self.step_counter = 0
        self.current_wave = 0
        self.last_counts = (0, 0)
        self.pending_pause = False
        self.ignore_start_dp_wave = False
        self.eep_scaling_state = None
        self.input_queue: queue.Queue = queue.Queue()
        self.output_queue: queue.Queue = queue.Queue()
        self.engine_index = vllm_config.parallel_config.data_parallel_rank
        self.engines_running = False
        self.has_coordinator = True
        self.publish_dp_lb_stats = False
        self.process_input_queue_block = True
        self.shutdown_state = EngineShutdownState.RUNNING
        self._set_what_later_releases_have(vllm_config)
        self._init_data_parallel(vllm_config)
        EngineCore.__init__(self, vllm_config, self.executor, log_stats=True)
        self.trace = trace
        self.model_executor.scheduler = self.scheduler
        self._execute_model = self.model_executor.execute_model
        self.model_executor.execute_model = self._record_and_execute

    def _record_and_execute(self, scheduler_output, non_block=False):
        self._record(scheduler_output)
        return self._execute_model(scheduler_output, non_block=non_block)

    def _set_what_later_releases_have(self, vllm_config: VllmConfig) -> None:
        parallel, scheduling = vllm_config.parallel_config, vllm_config.scheduler_config
        interval = getattr(scheduling, "prefill_schedule_interval", 1)
        self.prefill_schedule_interval = interval
        # Their first step syncs, too.
        self.first_sync = 1 if hasattr(parallel, "dp_sync_interval") else 0
        self.dp_sync_interval = getattr(parallel, "dp_sync_interval", 32)
        self.enable_fault_tolerance = False
        self.reject_new_requests = False

    def _record(self, output) -> None:
        new = [request.req_id for request in output.scheduled_new_reqs]
        scheduled = output.num_scheduled_tokens
        self.trace.steps.append((tuple(scheduled), tuple(scheduled.values()), new))
        self.trace.preemptions += len(output.preempted_req_ids or ())


class ModelEngine(LoopEngine):
    """With the model, in the rank's process."""

    executor = UniProcExecutor


class CollectiveCounter(LoopEngine):
    """Counts every collective call of the loop, however it is made."""

    NAMES = (
        "_allgather_base",
        "_reduce_scatter_base",
        "allgather",
        "allreduce",
        "alltoall",
        "alltoall_base",
        "barrier",
        "broadcast",
        "gather",
        "recv",
        "reduce_scatter",
        "scatter",
        "send",
    )
    """Methods of a process group; the functions of torch.distributed end in them."""

    def __init__(self, vllm_config: VllmConfig, trace: Trace) -> None:
        super().__init__(vllm_config, trace)
        group = dist.ProcessGroup
        for name in self.NAMES:
            setattr(group, name, self._counted(name, getattr(group, name)))

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.trace.collectives[name] += 1
            return function(*args, **kwargs)

        return call

    def _has_global_unfinished_reqs(self, local_unfinished: bool) -> bool:
        active = super()._has_global_unfinished_reqs(local_unfinished)
        step = self.step_counter
        self.trace.syncs += step % self.dp_sync_interval == 0 or step == self.first_sync
        return active


class AscendRuleEngine(LoopEngine):
    """Checks every decision of `cap` against the vllm-ascend rule, on its own gather.

    The rule is written here a second time, from its description: freeze admission
    while the largest running count of the last gather equals the limit.
    """

    frozen = False

    def _has_global_unfinished_reqs(self, local_unfinished: bool) -> bool:
        active = super()._has_global_unfinished_reqs(local_unfinished)
        self.frozen = False
        if active:
            counts: list[Any] = [None] * self.dp_size
            tensor = _int_tensor(len(self.scheduler.running))
            counts = [_int_tensor(0) for _ in range(self.dp_size)]
            dist.all_gather(counts, tensor, group=self.dp_group)
            limit = self.scheduler.max_num_running_reqs
            self.frozen = max(int(count) for count in counts) == limit
            self.trace.closed += self.frozen
        return active

    def _record(self, output) -> None:
        super()._record(output)
        gate = self.scheduler.balance_gate
        where = f"rank {self.dp_rank} wave {self.current_wave} step {self.step_counter}"
        if gate.decision.admit == self.frozen:
            self.trace.violations.append(f"{where}: gate and vllm-ascend rule disagree")
        if self.frozen and self.trace.steps[-1][2]:
            self.trace.violations.append(f"{where}: admitted while frozen")
        if self.step_counter == 0 and (self.frozen or not gate.decision.admit):
            self.trace.violations.append(f"{where}: held at the start of a wave")


def _int_tensor(value: int):
    import torch

    return torch.tensor([value], dtype=torch.int)


def run_rank(
    rank: int, arguments: dict[str, Any], engine_class: type, inbox: Any, outbox: Any
) -> None:
    """Body of a rank's process: serve until the "stop" message, then report."""
    engine = None
    try:
        if log := arguments["additional_config"].get("log"):
            logging.getLogger("vllm").addHandler(logging.FileHandler(log))
        config = EngineArgs(**arguments).create_engine_config()
        config.parallel_config.data_parallel_rank = rank
        config.parallel_config.data_parallel_rank_local = rank
        config.parallel_config._data_parallel_master_port_list = []
        trace = Trace()
        engine = engine_class(config, trace)
        done = threading.Event()
        threading.Thread(target=_feed, args=(engine, inbox, done), daemon=True).start()
        threading.Thread(
            target=_forward, args=(rank, engine, outbox, trace), daemon=True
        ).start()
        outbox.put((rank, "ready", None))
        try:
            engine.run_busy_loop()
        except SystemExit:
            done.set()
        leftover = len(engine.scheduler.requests)
        outbox.put((rank, "report", (trace, leftover)))
    except BaseException:
        outbox.put((rank, "died", traceback.format_exc()))
        if engine is not None:
            engine.shutdown()  # as upstream does, with the error still at hand


def _feed(engine: LoopEngine, inbox: Any, done: threading.Event) -> None:
    shared = engine.vllm_config.additional_config.get("shared_prefix", 0)
    while not done.is_set():
        kind, payload = inbox.get()
        if kind == "stop":
            engine.shutdown_state = EngineShutdownState.REQUESTED
            engine.input_queue.put_nowait((EngineCoreRequestType.WAKEUP, None))
            return
        if kind == "add":
            request_id, prompt_tokens, output_tokens, wave = payload
            request = EngineCoreRequest(
                request_id=request_id,
                prompt_token_ids=prompt_of(prompt_tokens, shared),
                mm_features=None,
                sampling_params=SamplingParams(
                    max_tokens=output_tokens, ignore_eos=True, temperature=0.0
                ),
                pooling_params=None,
                arrival_time=time.time(),
                lora_request=None,
                cache_salt=None,
                data_parallel_rank=None,
                current_wave=wave,
            )
            item = engine.preprocess_add_request(request)
            engine.input_queue.put_nowait((EngineCoreRequestType.ADD, item))
        elif kind == "call":
            call = (0, 0, *payload)
            engine.input_queue.put_nowait((EngineCoreRequestType.UTILITY, call))
        elif kind == "abort":
            engine.input_queue.put_nowait((EngineCoreRequestType.ABORT, [payload]))
        else:
            start = EngineCoreRequestType.START_DP_WAVE
            engine.input_queue.put_nowait((start, payload))


def prompt_of(tokens: int, shared: int = 0) -> list[int]:
    """A prompt of that length.

    Those of different lengths have so many first tokens in common, and no more.
    """
    first = random.Random("shared").choices(range(1, 100), k=shared)[:tokens]
    rest = random.Random(tokens).choices(range(1, 100), k=tokens - len(first))
    return first + rest


def _forward(rank: int, engine: LoopEngine, outbox: Any, trace: Trace) -> None:
    answers: dict[str, list[int]] = defaultdict(list)
    while True:
        _, outputs = engine.output_queue.get()
        if outputs.wave_complete is not None:
            trace.waves += 1
            outbox.put((rank, "wave_complete", outputs.wave_complete))
        if outputs.start_wave is not None:
            outbox.put((rank, "start_wave", outputs.start_wave))
        if outputs.utility_output is not None:
            outbox.put((rank, "called", outputs.utility_output.failure_message))
        for output in outputs.outputs:
            answers[output.request_id] += output.new_token_ids
            if output.finish_reason is not None:
                trace.finished += 1
                answer = answers.pop(output.request_id)
                complete = output.finish_reason == FinishReason.LENGTH
                finished = (output.request_id, answer, complete)
                outbox.put((rank, "finished", finished))


class Ranks:
    """The ranks' processes, and the coordinator's part of the protocol."""

    def __init__(
        self, size: int, engine_class: type = LoopEngine, **arguments: Any
    ) -> None:
        # Fork: the parent has imported vllm but has started no threads of torch.
        context = multiprocessing.get_context("fork")
        self.outbox = context.Queue()
        self.inboxes = [context.Queue() for _ in range(size)]
        config = EngineArgs(data_parallel_size=size, **arguments)
        port = config.create_engine_config().parallel_config.data_parallel_master_port
        arguments |= {"data_parallel_size": size}
        self.processes = [
            context.Process(
                target=_run_rank_on_port,
                args=(
                    port,
                    rank,
                    arguments,
                    engine_class,
                    self.inboxes[rank],
                    self.outbox,
                ),
                daemon=True,
            )
            for rank in range(size)
        ]
        self.wave = 0
        self.running = False
        self.calls_under_way = 0
        self.requests: dict[str, tuple[int, int]] = {}
        self.unfinished: set[str] = set()
        self.answers: list[tuple[int, list[int]]] = []
        """Tokens of the prompt, and the answer, which is shorter if it was aborted."""
        for process in self.processes:
            process.start()
        for _ in range(size):
            self._handle(self._next(timeout=120), expect="ready")

    def _next(self, timeout: float) -> tuple[int, str, Any]:
        try:
            return self.outbox.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(
                f"no word from any rank for {timeout} s: deadlock with "
                f"{len(self.unfinished)} unfinished requests"
            ) from None

    def _handle(self, message: tuple[int, str, Any], expect: str = "") -> None:
        rank, kind, payload = message
        assert kind != "died", f"rank {rank} died:\n{payload}"
        if kind == "wave_complete" and self.wave <= payload:
            self.wave, self.running = payload + 1, False
        elif kind == "start_wave" and (
            payload > self.wave or (payload == self.wave and not self.running)
        ):
            self._start_wave(payload, exclude=rank)
        elif kind == "finished":
            request_id, answer, complete = payload
            prompt_tokens, output_tokens = self.requests.pop(request_id)
            assert not complete or len(answer) == output_tokens
            self.answers.append((prompt_tokens, answer))
            self.unfinished.discard(request_id)
        elif kind == "called":
            assert payload is None, payload
            self.calls_under_way -= 1
        assert not expect or kind == expect

    def _start_wave(self, wave: int, exclude: int) -> None:
        self.wave, self.running = wave, True
        for inbox in self.inboxes:
            inbox.put(("start", (wave, exclude)))

    def submit(self, rank: int, request_id: str, prompt: int, output: int) -> None:
        self.unfinished.add(request_id)
        self.requests[request_id] = (prompt, output)
        self.inboxes[rank].put(("add", (request_id, prompt, output, self.wave)))
        if not self.running:
            self._start_wave(self.wave, exclude=rank)

    def abort(self, rank: int, request_id: str) -> None:
        self.inboxes[rank].put(("abort", request_id))
        self.unfinished.discard(request_id)

    def call(self, method: str, *arguments: Any, timeout: float = 60) -> None:
        """Calls a method of every engine core, as the front-end does, and waits."""
        for inbox in self.inboxes:
            inbox.put(("call", (method, arguments)))
        self.calls_under_way = len(self.inboxes)
        while self.calls_under_way:
            self._handle(self._next(timeout))

    def poll(self) -> None:
        """Handles what has come in, without waiting."""
        while not self.outbox.empty():
            self._handle(self._next(timeout=1))

    def drain(self, timeout: float = 60) -> None:
        """Waits until every request is finished and the wave has ended."""
        while self.unfinished or self.running:
            self._handle(self._next(timeout))

    def stop(self, timeout: float = 60) -> list[tuple[Trace, int]]:
        """Ends all ranks; returns each one's trace and left-over requests."""
        for inbox in self.inboxes:
            inbox.put(("stop", None))
        reports: dict[int, tuple[Trace, int]] = {}
        while len(reports) < len(self.processes):
            rank, kind, payload = self._next(timeout)
            if kind == "report":
                reports[rank] = payload
            else:
                self._handle((rank, kind, payload))
        for process in self.processes:
            process.join(timeout)
        return [reports[rank] for rank in sorted(reports)]

    def deaths(self, count: int, timeout: float) -> dict[int, str]:
        """The tracebacks, by rank, of the next ranks that die of an error, and have
        ended."""
        errors: dict[int, str] = {}
        while len(errors) < count:
            rank, kind, payload = self._next(timeout)
            if kind == "died":
                errors[rank] = payload
        for rank in errors:
            self.processes[rank].join(timeout)
        return errors

    def kill(self) -> None:
        for process in self.processes:
            if process.is_alive():
                process.kill()
                process.join()


def loop_arguments(model: Any, **overrides: Any) -> dict[str, Any]:
    """Engine arguments of small ranks: four requests each, steps of 64 tokens.

    `additional_config` is for this module: KV cache blocks, a file for the log, and
    how many tokens all prompts have in common.
    """
    return {
        "model": str(model),
        "skip_tokenizer_init": True,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "enforce_eager": True,
        "additional_config": {"kv_blocks": 100},
        "distributed_executor_backend": "uni",
        **overrides,
    }


def _run_rank_on_port(port: int, *args: Any) -> None:
    """All ranks must meet at one port; each process would draw its own."""
    import vllm.config.parallel as parallel

    parallel.get_open_ports_list = lambda count=5: [port] * count
    run_rank(*args)


def burst(
    ranks: Ranks,
    rng: random.Random,
    name: str,
    requests: int,
    aborts: bool = False,
    tokens: tuple[int, int] = (200, 30),
) -> None:
    """Submits random requests to random ranks (some ranks may get none).

    `tokens` are the most of a prompt and of an answer.
    """
    prompt, output = tokens
    busy = rng.sample(range(len(ranks.inboxes)), rng.randint(1, len(ranks.inboxes)))
    sent = []
    for number in range(requests):
        rank = rng.choice(busy)
        request_id = f"{name}-{number}"
        ranks.submit(rank, request_id, rng.randint(1, prompt), rng.randint(1, output))
        sent.append((rank, request_id))
    if aborts:
        for rank, request_id in rng.sample(sent, len(sent) // 4):
            ranks.abort(rank, request_id)
