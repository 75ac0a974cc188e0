"""Ranks that run `dp_loop`, a process each; their coordinator and front-end."""

import multiprocessing
import queue

from vllm.engine.arg_utils import EngineArgs

from dp_loop import LoopEngine, Trace, run_rank
from ports import free_port

QUIET_S = 120
"""A rank without a message for so many seconds hangs."""


class Ranks:
    """The ranks' processes, and the coordinator's part of the protocol."""

    def __init__(self, size, engine_class=LoopEngine, **arguments):
        # Fork: the parent has imported vllm but has started no threads of torch.
        context = multiprocessing.get_context("fork")
        self.outbox = context.Queue()
        self.inboxes = [context.Queue() for _ in range(size)]
        arguments |= {"data_parallel_size": size}
        # Caches the model's files in memory before the ranks read them.
        EngineArgs(**arguments).create_engine_config()
        port = free_port()
        self.processes = [
            context.Process(
                target=run_rank,
                args=(port, rank, arguments, engine_class, inbox, self.outbox),
                daemon=True,
            )
            for rank, inbox in enumerate(self.inboxes)
        ]
        self.wave = 0
        self.running = False
        self.calls_under_way = 0
        self.requests: dict[str, int] = {}
        """The most tokens of each answer."""
        self.unfinished: set[str] = set()
        self.answers: list[list[int]] = []
        """Shorter after an abort."""
        for process in self.processes:
            process.start()
        for _ in range(size):
            self._handle(self._next(QUIET_S), expect="ready")

    def _next(self, timeout):
        try:
            return self.outbox.get(timeout=timeout)
        except queue.Empty:
            raise AssertionError(
                f"no word from any rank for {timeout} s: deadlock with "
                f"{len(self.unfinished)} unfinished requests"
            ) from None

    def _handle(self, message, expect=""):
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
            output_tokens = self.requests.pop(request_id)
            assert not complete or len(answer) == output_tokens
            self.answers.append(answer)
            self.unfinished.discard(request_id)
        elif kind == "called":
            assert payload is None, payload
            self.calls_under_way -= 1
        assert not expect or kind == expect

    def _start_wave(self, wave, exclude):
        self.wave, self.running = wave, True
        for inbox in self.inboxes:
            inbox.put(("start", (wave, exclude)))

    def submit(self, rank, request_id, prompt, output):
        self.unfinished.add(request_id)
        self.requests[request_id] = output
        self.inboxes[rank].put(("add", (request_id, prompt, output, self.wave)))
        if not self.running:
            self._start_wave(self.wave, exclude=rank)

    def abort(self, rank, request_id):
        self.inboxes[rank].put(("abort", request_id))
        self.unfinished.discard(request_id)

    def call(self, method, *arguments, to=None):
        """Calls a method of all engine cores, or of those in `to`, and waits."""
        called = self.inboxes if to is None else [self.inboxes[rank] for rank in to]
        for inbox in called:
            inbox.put(("call", (method, arguments)))
        self.calls_under_way = len(called)
        while self.calls_under_way:
            self._handle(self._next(QUIET_S))

    def poll(self):
        while not self.outbox.empty():
            self._handle(self._next(QUIET_S))

    def drain(self):
        while self.unfinished or self.running:
            self._handle(self._next(QUIET_S))

    def stop(self):
        """Ends all ranks; returns each one's trace and left-over requests."""
        for inbox in self.inboxes:
            inbox.put(("stop", None))
        reports: dict[int, tuple[Trace, int]] = {}
        while len(reports) < len(self.processes):
            rank, kind, payload = self._next(QUIET_S)
            if kind == "report":
                reports[rank] = payload
            else:
                self._handle((rank, kind, payload))
        for process in self.processes:
            process.join(QUIET_S)
        return [reports[rank] for rank in sorted(reports)]

    def deaths(self, count, timeout):
        """By rank the tracebacks of the next `count` ranks that die."""
        errors: dict[int, str] = {}
        while len(errors) < count:
            rank, kind, payload = self._next(timeout)
            if kind == "died":
                errors[rank] = payload
        for rank in errors:
            self.processes[rank].join(timeout)
        return errors

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.is_alive():
                process.kill()
                process.join()


HOW = {
    "sync": {"async_scheduling": False},
    "async": {"async_scheduling": True},
    # Then rows are sent before their step is computed.
    "several hosts": {"async_scheduling": False, "data_parallel_size_local": 1},
}
"""Options of the order in which ranks schedule, compute and send."""


def loop_arguments(model, **overrides):
    """Four requests each, steps of 64 tokens; `additional_config` is for `dp_loop`."""
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


def burst(ranks, rng, name, requests, aborts=False, tokens=(200, 30)):
    """Random requests to some ranks, with at most `tokens` of prompt and answer."""
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
