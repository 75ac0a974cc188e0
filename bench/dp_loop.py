"""A real data parallel engine loop, in the process of a rank that `dp_ranks` starts.

The tests of the engine run it.

Upstream's `DPEngineCoreProc.run_busy_loop` with a real scheduler, the real balance gate
and a real gloo group. A `LoopEngine` has a stand-in for the model, which answers every
decode with token 7, so that thousands of steps take seconds.
"""

import logging
import queue
import random
import threading
import time
import traceback
from collections import defaultdict
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import torch
from vllm.config import parallel
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.v1.engine import EngineCoreRequest, EngineCoreRequestType, FinishReason
from vllm.v1.engine.core import DPEngineCoreProc, EngineCore, EngineShutdownState
from vllm.v1.executor.abstract import Executor
from vllm.v1.kv_cache_interface import FullAttentionSpec
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput

BLOCK_SIZE = 16
NOT_GIVEN = (
    "mm_features",
    "pooling_params",
    "lora_request",
    "cache_salt",
    "data_parallel_rank",
)
"""Fields of a request."""


class StandInExecutor(Executor):
    """Answers at once: one token for every request whose prompt is complete."""

    def _init_executor(self):
        self.scheduler: Any = None

    def get_kv_cache_specs(self):
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
        """Nothing to compute."""


def _done(value):
    future: Future = Future()
    future.set_result(value)
    return future


@dataclass
class Trace:
    steps: list[tuple[Any, ...]] = field(default_factory=list)
    """Per schedule(): (request ids, tokens each, newly admitted ids)."""
    violations: list[str] = field(default_factory=list)
    closed: int = 0
    """Exchanges after which admission was closed."""
    known: int = 0
    """Objects that the gate knew of at most (`SwitchingEngine` only)."""
    waves: int = 0
    finished: int = 0
    preemptions: int = 0


class LoopEngine(DPEngineCoreProc):
    """`DPEngineCoreProc` without sockets: queues in, queues out."""

    executor: type[Executor] = StandInExecutor

    def __init__(self, vllm_config, trace):
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

    def _set_what_later_releases_have(self, vllm_config):
        parallel, scheduling = vllm_config.parallel_config, vllm_config.scheduler_config
        interval = getattr(scheduling, "prefill_schedule_interval", 1)
        self.prefill_schedule_interval = interval
        self.dp_sync_interval = getattr(parallel, "dp_sync_interval", 32)
        self.enable_fault_tolerance = False
        self.reject_new_requests = False

    def _record(self, output):
        new = [request.req_id for request in output.scheduled_new_reqs]
        scheduled = output.num_scheduled_tokens
        self.trace.steps.append((tuple(scheduled), tuple(scheduled.values()), new))
        self.trace.preemptions += len(output.preempted_req_ids or ())


def run_rank(port, rank, arguments, engine_class, inbox, outbox):
    """Serve until the "stop" message, then report; all ranks meet at that port."""
    engine = None
    parallel.get_open_ports_list = lambda count=5: [port] * count
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


def _feed(engine, inbox, done):
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
                **dict.fromkeys(NOT_GIVEN),
                request_id=request_id,
                prompt_token_ids=prompt_of(prompt_tokens, shared),
                sampling_params=SamplingParams(
                    max_tokens=output_tokens, ignore_eos=True, temperature=0.0
                ),
                arrival_time=time.time(),
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


def prompt_of(tokens, shared=0):
    """A prompt of that length; all have their `shared` first tokens in common."""
    first = random.Random("shared").choices(range(1, 100), k=shared)[:tokens]
    rest = random.Random(tokens).choices(range(1, 100), k=tokens - len(first))
    return first + rest


def _forward(rank, engine, outbox, trace):
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
