"""Data parallel ranks in one process, under a controller: `docs/interleavings.md`.

Of upstream, and real: the busy loop, the scheduler and the coordinator; of ours gate,
exchange and switch. Instead of the model, gloo, its store, sockets, threads, the clock
and the front-end stand those here. A rank stops where it looks for messages, and in a
collective call until all are in it.
"""

import contextlib
import itertools
import logging
import queue
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest import mock

import msgspec
import torch
import zmq
from greenlet import getcurrent, greenlet
from vllm import envs
from vllm.config import ParallelConfig, parallel
from vllm.distributed.elastic_ep import elastic_state
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.balance.rank import gate, group, timing, watch
from vllm.v1.core.sched.balance.rank.metrics import BalanceStats
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import (
    EngineCoreOutputs,
    EngineCoreRequestType,
    ReconfigureDistributedRequest,
    ReconfigureRankType,
    coordinator,
    core,
)
from vllm.v1.request import Request

from dp_loop import LoopEngine, StandInExecutor, Trace
from vllm_balance.core import policies
from vllm_balance.core.policies.rows import Row
from vllm_balance.core.policies.switch_ticket import first_ticket, next_ticket

KEEP = ReconfigureRankType.KEEP_CURRENT_RANK
SYNC = 4
"""Steps between two finish-syncs, 32 of upstream: where it is does not matter."""
HOLD_STEPS = {"off": 0, "cap": 4, "align": 5, "adaptive": 60}
"""For which a prompt that has a slot may be held at most, with `SMALL`."""
SMALL = {
    "cap": partial(policies.Cap, timeout_steps=3),
    "align": partial(policies.Align, timeout_steps=3, batching_steps=2),
}


PASS, BARRIER = "a forward pass", "a barrier of a resize"


class Fault(AssertionError):  # noqa: N818
    """What must hold does not."""


class Stopped(BaseException):
    """The run is over."""


class Actor:
    """Runs when it is told to, until it waits for something."""

    current: "Actor"

    def __init__(self, world: "World", name: Any, body: Callable[[], None]):
        self.world, self.name = world, name
        self.at, self.seconds = "beginning", 0.0
        self.is_ready: Callable[[], bool] = lambda: True
        self.error: Exception | None = None
        self.threads: list[Actor] = []
        """Of the rank, besides its busy loop: they run when it is stuck."""
        self._task = greenlet(self._run)
        self._body = body

    def _run(self):
        try:
            self._body()
        except (SystemExit, Stopped):
            pass
        except Exception as error:
            self.error = error
        self.at, self.is_ready = "ended", lambda: False

    def resume(self, *error):
        Actor.current = self
        self._task.parent = getcurrent()
        self._task.throw(*error) if error else self._task.switch()
        if isinstance(self.error, Fault):
            raise self.error

    def wait(self, what, is_ready=lambda: False):
        """Called by the actor."""
        self.at, self.is_ready = what, is_ready
        self._task.parent.switch()

    def kill(self):
        for each in (*self.threads, self):
            if each.at != "ended":
                each.resume(Stopped)
                each.at, each.is_ready = "ended", lambda: False


class Thread:
    """Of `threading`, and its `Event`: a rank has threads that watch the others."""

    def __init__(self, target=None, args=(), daemon=True):
        self._body = partial(target, *args) if target else None
        self._is_set = False

    def start(self):
        rank = Actor.current
        rank.threads.append(Actor(rank.world, rank.name, self._body))

    def wait(self, timeout):
        Actor.current.wait("asleep")
        return self._is_set

    def set(self):
        self._is_set = True


class Store:
    """A store of torch.distributed, or a part of it."""

    def __init__(self, prefix="", store=None):
        self._prefix = prefix
        self._data = {} if store is None else store._data

    def _names(self, keys):
        return [f"{self._prefix}/{key}" for key in keys]

    def clone(self):
        return self

    def set(self, key, value):
        value = value.encode() if isinstance(value, str) else value
        self._data.update(dict.fromkeys(self._names([key]), value))

    def compare_set(self, key, _, value):
        self.set(key, value)

    def add(self, key, more):
        self.set(key, str(int(self.get(key)) + more))

    def get(self, key):
        return self._data.get(*self._names([key]), b"0")

    def delete_key(self, key):
        self._data.pop(*self._names([key]), None)

    def multi_get(self, keys):
        return [*map(self.get, keys)]

    def check(self, keys):
        return all(name in self._data for name in self._names(keys))

    def wait(self, keys, timeout=None):
        if not self.check(keys):
            Actor.current.wait("a key of the store", lambda: self.check(keys))


class Call:
    """A collective call: it ends once all ranks of the group are in it."""

    def __init__(self, group, kind):
        self.group, self.kind = group, kind
        self.values: dict[int, Any] = {}
        self.ends_at = 0.0

    @property
    def is_whole(self):
        return len(self.values) == self.group.size()

    @property
    def is_broken(self):
        """Whether gloo, but not a device, notices that somebody is lost."""
        lost = self.group.world.lost.keys() & {*range(self.group.size())}
        return self.kind != PASS and not lost <= self.values.keys()

    def wait(self, timeout=None):
        actor = Actor.current
        if not self.is_whole:
            actor.wait(self.kind, lambda: self.is_whole or self.is_broken)
        if not self.is_whole:
            raise RuntimeError("Connection closed by peer")
        actor.seconds = max(actor.seconds, self.ends_at)


class Group:
    """A process group, and that of the devices; its ranks share it."""

    def __init__(self, world, size, name=""):
        self.world, self._members = world, range(size)
        self._name, self._store = name, Store()
        self._calls: dict[tuple[str, int], Call] = {}
        self._counts: dict[Any, int] = defaultdict(int)

    def rank(self):
        return self._members.index(Actor.current.name)

    def size(self):
        return len(self._members)

    def get_group_store(self):
        return self._store

    @cached_property
    def apart(self):
        return Group(self.world, self.size(), " of its own")

    def meet(self, kind, value, of="host", seconds=0.0):
        """The n-th call of a rank is the n-th of the others, or the ranks are lost."""
        rank = self.rank()
        number = self._counts[of, rank] = self._counts[of, rank] + 1
        call = self._calls.setdefault((of, number), Call(self, kind + self._name))
        if call.kind != kind + self._name:
            raise Fault(f"rank {rank} is in {kind}, others in {call.kind}")
        call.values[rank] = value
        call.ends_at = max(call.ends_at, Actor.current.seconds + seconds)
        if call.is_whole:
            del self._calls[of, number]
        return call

    def alltoall_base(self, received, sent, *_):
        call = self.meet("the exchange", sent.clone())
        size = self.size()

        def wait(timeout):
            call.wait()
            for rank in range(size):
                received[rank] = call.values[rank][self.rank()]

        return SimpleNamespace(wait=wait)


def all_reduce(tensor, op=torch.distributed.ReduceOp.SUM, group=None):
    name = "sum" if op == torch.distributed.ReduceOp.SUM else "max"
    call = group.meet(f"an all-reduce ({name} of {tensor.numel()})", tensor.clone())
    call.wait()
    values = torch.stack([call.values[rank] for rank in range(group.size())])
    tensor.copy_(values.sum(0) if name == "sum" else values.amax(0))


class Device(StandInExecutor):
    """Forward passes of all ranks meet, and take time where a policy asks for it."""

    def _forward(self, tokens, value):
        world, place = Actor.current.world, Actor.current.name
        seconds = world.setting.step_s * (1 + tokens / 4)
        group = world.engines[place].dp_group
        call = group.meet(PASS, None, "device", seconds)

        def result():
            call.wait()
            return value

        return SimpleNamespace(result=result)

    def execute_model(self, scheduler_output, non_block=False):
        done = super().execute_model(scheduler_output, non_block)
        if tokens := scheduler_output.total_num_scheduled_tokens:
            self._pass = self._forward(tokens, self._output)
            return SimpleNamespace(result=lambda: self._pass.result() and None)
        return done

    def sample_tokens(self, grammar_output, non_block=False):
        return self._pass if non_block else self._pass.result()

    def execute_dummy_batch(self):
        self._forward(0, None).result()


class Inbox:
    """The input queue: a rank that finds it empty may get a message first."""

    def __init__(self, engine):
        self._engine, self.items = engine, deque()

    def empty(self):
        engine = self._engine
        if not self.items and (
            engine.has_work() or not engine.process_input_queue_block
        ):
            Actor.current.wait("top")
        return not self.items

    def get(self, block=True):
        if not self.items and block:
            Actor.current.wait("idle")
        return self.get_nowait()

    def get_nowait(self):
        if not self.items:
            raise queue.Empty
        return self.items.popleft()


class Rank(LoopEngine):
    """A rank, and what must hold in each of its steps."""

    executor = Device

    def __init__(self, config, world, place):
        self.world, self.place = world, place
        world.engines[place] = self
        self.held_for: dict[str, int] = {}
        super().__init__(config, Trace())
        self.dp_sync_interval = SYNC  # of a later release
        self.input_queue = Inbox(self)
        self.output_queue = SimpleNamespace(put_nowait=partial(world.hear, place))
        self.output_thread = SimpleNamespace(
            join=lambda timeout: None, is_alive=lambda: True
        )

    @property
    def gate(self):
        return getattr(self.scheduler, "balance_gate", None)

    @property
    def decided(self):
        return self.gate and (self.gate.switch.name, self.gate.decision)

    def _record(self, output):
        if self.gate is None:
            return
        decision, scheduler = self.gate.decision, self.scheduler
        new = [request.req_id for request in output.scheduled_new_reqs]
        budget = decision.prefill_budget
        if new and (not decision.admit or budget == 0):
            raise Fault(f"rank {self.place} admits {new} while it holds")
        if self.step_counter == 0 and (not decision.admit or budget is not None):
            raise Fault(
                f"rank {self.place} begins wave {self.current_wave} with a hold"
            )
        is_full = len(scheduler.running) >= scheduler.max_num_running_reqs
        waits = [] if is_full or scheduler.pause_state.value else scheduler.waiting
        counts = self.held_for
        self.held_for = {r.request_id: counts.get(r.request_id, 0) + 1 for r in waits}
        name = "adaptive" if self.world.switched else self.gate.switch.name
        if max(self.held_for.values(), default=0) > HOLD_STEPS[name]:
            raise Fault(f"rank {self.place} holds prompts for {self.held_for} steps")


class Socket:
    """Of the coordinator."""

    def __init__(self, path, **_):
        world = Actor.current.world
        self.inbox = deque([b"\x01"] * len(world.ranks) if path == "back" else [])
        self.send = self.send_multipart = partial(world.publish, path)
        world.sockets[path] = self

    def recv(self):
        return self.inbox.popleft()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


class Poller:
    def __init__(self):
        self._sockets = []

    def register(self, socket, flags):
        self._sockets.append(socket)

    def poll(self, timeout):
        found = [(socket, zmq.POLLIN) for socket in self._sockets if socket.inbox]
        if not found:
            Actor.current.wait("idle", lambda: any(s.inbox for s in self._sockets))
            return self.poll(timeout)
        return found


@dataclass
class FrontEnd:
    """What upstream's `DPAsyncMPClient` knows, and its client."""

    wave: int = 0
    running: bool = False
    requests: int = 0
    calls: int = 0
    """That were not answered."""
    paused: bool = False
    ticket: int = 0
    size: int = 0
    """To which ranks are asked to resize."""


class World:
    """One run: `options` are what may happen next, and `take` is that it does."""

    def __init__(self, setting, model_config):
        self.setting, self.ranks = setting, range(setting.ranks)
        self.budget = setting.events
        self.switched = False
        self._groups: dict[int, Group] = {}
        self.lost: dict[int, str] = {}
        """Ranks that have ended, or will never answer, and why."""
        self.engines: dict[int, Rank] = {}
        self.sockets: dict[str, Socket] = {}
        self.channels: dict[tuple[Any, Any], deque[Any]] = defaultdict(deque)
        self.fresh: list[tuple[Any, Any]] = []
        """Channels of the event that has just been sent: one of them goes on."""
        self.client = FrontEnd(ticket=first_ticket(setting.policy))
        self.unfinished: dict[str, int] = {}
        self.calls: dict[Any, list[str]] = {}
        """By rank, if they are `recorded`."""
        self.published = (0, False)
        self.actors = {
            place: Actor(self, place, partial(self._serve, place, model_config))
            for place in self.ranks
        }
        self.coordinator = Actor(self, "coordinator", self._coordinate)
        self.settle()

    def _serve(self, place, config):
        Rank(config(place), self, place).run_busy_loop()

    def _coordinate(self):
        process = object.__new__(coordinator.DPCoordinatorProc)
        process.ctx, process.stats_update_interval_ms = None, 100
        process.engines = [coordinator.EngineState() for _ in self.ranks]
        process.enable_wave_coordination = True
        process.process_input_socket("front", "output", "back")

    def group(self, config, return_store=False):
        size = config.data_parallel_size
        found = self._groups.setdefault(size, Group(self, size))
        return (found, found.get_group_store()) if return_store else found

    # What ranks and coordinator send.

    def hear(self, place, message):
        """Outputs of a rank."""
        if isinstance(message, bytes):
            return
        _, outputs = message
        if outputs.wave_complete is not None or outputs.start_wave is not None:
            said = {"wave": outputs.wave_complete, "start": outputs.start_wave}
            self.channels[place, "coordinator"].append(said)
        if (called := outputs.utility_output) is not None and called.call_id >= 0:
            if called.failure_message and not self.lost:
                raise Fault(f"rank {place}: {called.failure_message}")
            self.client.calls -= 1
            if self.client.size and not self.client.calls:
                resized = ("SCALE_ELASTIC_EP", self.client.size)
                self.channels["client", "coordinator"].append(resized)
                self.client.size = 0
        for output in outputs.outputs:
            if output.finish_reason is not None:
                self.unfinished.pop(output.request_id, None)

    def publish(self, path, message):
        """What the coordinator tells front-ends or ranks."""
        if path == "front":
            _, wave, running = msgspec.msgpack.decode(message)
            self.published = wave, running
            self.channels["coordinator", "client"].append([wave, running])
        elif isinstance(message, tuple):
            for rank in self.actors:
                said = msgspec.msgpack.decode(message[1])
                self.channels["coordinator", rank].append(("start", *said))

    # Choices.

    def options(self):
        """What may happen now; the first, taken again and again, leads to rest."""
        listens = [
            w for w, said in self.channels.items() if said and self._listens(w[1])
        ]
        if fresh := [way for way in self.fresh if way in listens]:
            stale = [way for way in listens if way == ("coordinator", "client")]
            return [f"deliver {a}>{b}" for a, b in (*fresh, *stale)]
        self.fresh = []
        found = [f"deliver {a}>{b}" for a, b in listens]
        found += [f"run {r}" for r, actor in self.actors.items() if actor.at == "top"]
        found = found or [
            f"expire {r}" for r, actor in self.actors.items() if actor.at == BARRIER
        ]
        found += [f"abort early {r}" for r in self.actors if self._may_abort_early(r)]
        client = self.client
        if client.paused and not client.calls:
            found.append("resume")
        if self.budget:
            found += [each for each in self.setting.alphabet if self._may(each)]
        return found

    def may_rest(self, options):
        """Whether nothing but another event could go on."""
        is_over = all(each in self.setting.alphabet for each in options)
        return is_over and not self.fresh and not self.client.paused

    def _listens(self, who):
        return who not in self.actors or self.actors[who].at in ("top", "idle")

    def _may_abort_early(self, place):
        said = self.channels["client", place]
        return bool(said) and said[0][0] == "abort" and self.actors[place].at == PASS

    def _may(self, event):
        verb, *_ = event.split()
        client = self.client
        if verb == "abort":
            return bool(self.unfinished)
        if verb in ("pause", "resume"):
            return not client.calls and not client.paused
        if verb == "request":
            return int(event.split()[1]) in self.ranks
        return verb == "switch" or (not client.paused and len(self.ranks) > 1)

    def take(self, choice):
        verb, *what = choice.split()
        self.fresh = []
        if verb == "run":
            self.actors[int(what[0])].resume()
        elif verb == "expire":
            self.actors[int(what[0])].seconds += 6  # upstream's ranks wait for 5
            self.actors[int(what[0])].resume()
        elif verb == "deliver":
            self._deliver(*(int(w) if w.isdigit() else w for w in what[0].split(">")))
        elif choice.startswith("abort early"):
            place = int(what[1])
            said = self.channels["client", place][0]
            self.channels["client", place][0] = ("aborted", *said[1:])
            self.engines[place].aborts_queue.put_nowait([said[1]])
        else:
            self.budget -= not (verb == "resume" and self.client.paused)
            getattr(self, f"_{verb}")(*what)
        self.settle()

    def settle(self):
        """Lets all run that do not wait for a choice."""
        while ready := [actor for actor in self._all() if actor.is_ready()]:
            ready[0].resume()
            for place, actor in self.actors.items():
                if actor.at == "ended" and place not in self.lost:
                    if actor.error is not None:
                        if not self.lost or type(actor.error) is not RuntimeError:
                            raise Fault(f"rank {place} died of {actor.error!r}")
                        self.lost[place] = str(actor.error)
                    actor.kill()
        self.compare()

    def stored(self):
        """What ranks that come to a resize tell each other."""
        data = [group.get_group_store()._data for group in self._groups.values()]
        return [{k: v for k, v in each.items() if "eep" in k} for each in data]

    def _all(self):
        threads = [thread for rank in self.actors.values() for thread in rank.threads]
        return [*self.actors.values(), self.coordinator, *threads]

    def _deliver(self, sender, to):
        message = self.channels[sender, to].popleft()
        if to == "client":
            self.client.wave, self.client.running = message
        elif to == "coordinator":
            self._tell_coordinator(sender, message)
        else:
            kind, *what = message
            engine = self.engines[to]
            if kind == "abort":
                engine.aborts_queue.put_nowait(what)
            engine.input_queue.items.append(self._encoded(engine, kind, what))
            self.actors[to].resume()

    def _tell_coordinator(self, sender, message):
        if sender == "client":
            self.sockets["front"].inbox.append(msgspec.msgpack.encode(message))
            return
        said = EngineCoreOutputs(
            engine_index=sender,
            wave_complete=message["wave"],
            start_wave=message["start"],
        )
        self.sockets["output"].inbox.append(msgspec.msgpack.encode(said))

    def _encoded(self, engine, kind, what):
        if kind == "start":
            return EngineCoreRequestType.START_DP_WAVE, tuple(what)
        if kind in ("abort", "aborted"):
            return EngineCoreRequestType.ABORT, what
        if kind == "call":
            return EngineCoreRequestType.UTILITY, (0, 0, *what)
        name, tokens, wave = what
        request = Request(
            name,
            [1] * 4,
            SamplingParams(max_tokens=tokens, ignore_eos=True),
            None,
            arrival_time=0.0,
        )
        return EngineCoreRequestType.ADD, (request, wave)

    # Events, each of the front-end.

    def _send(self, *ways, message):
        for way in ways:
            self.channels[way].append(message)
            self.fresh.append(way)

    def _request(self, place, tokens):
        client = self.client
        name = f"request-{client.requests}"
        client.requests += 1
        self.unfinished[name] = int(place)
        add = ("add", name, int(tokens), client.wave)
        self._send(("client", int(place)), message=add)
        if not client.running:
            client.running = True
            first = [int(place), client.wave]
            self._send(("client", "coordinator"), message=first)

    def _abort(self):
        name, place = next(iter(self.unfinished.items()))
        del self.unfinished[name]
        self._send(("client", place), message=("abort", name))

    def _call(self, method, *arguments):
        self.client.calls += len(self.ranks)
        ways = [("client", rank) for rank in self.ranks]
        self._send(*ways, message=("call", method, arguments))

    def _pause(self, mode):
        self.client.paused = True
        self._call("pause_scheduler", mode, False)

    def _resume(self):
        self.client.paused = False
        self._call("resume_scheduler")

    def _switch(self, name):
        self.switched = True
        self.client.ticket = next_ticket(self.client.ticket, name)
        self._call("balance_policy", self.client.ticket)

    def _lose(self, place):
        """A rank ends, or falls silent, of which nobody is told."""
        self.budget = 0
        self.lost[int(place)] = "lost"
        self.actors[int(place)].kill()

    def _resize(self):
        """The last rank leaves, with its requests."""
        last = len(self.ranks) - 1
        for rank in self.ranks:
            asked = ReconfigureDistributedRequest(
                last,
                KEEP if rank < last else ReconfigureRankType.SHUTDOWN_CURRENT_RANK,
                KEEP,
                "",
                0,
                [],
                0,
            )
            message = ("call", "reinitialize_distributed", (asked,))
            self._send(("client", rank), message=message)
        self.client.calls += len(self.ranks)
        self.client.size = last
        self.ranks = range(last)
        self.unfinished = {n: r for n, r in self.unfinished.items() if r < last}

    def _pass_time(self):
        """So much that watches end the ranks that are stuck."""
        for _ in range(3 * watch.LONG_SILENCE):
            for actor in self.actors.values():
                actor.seconds += 60
                for thread in actor.threads:
                    if thread.at == "asleep":
                        thread.seconds = actor.seconds
                        thread.resume()
        for place, actor in self.actors.items():
            if actor.at == PASS and any(t.at == "ended" for t in actor.threads):
                self.lost[place] = "ended by its watch"
                actor.kill()
        self.settle()

    # What must hold.

    def compare(self):
        """Ranks that are in the same step decide alike."""
        seen: dict[Any, Any] = {}
        for place, engine in self.engines.items():
            if self.actors[place].at in ("top", "idle"):
                step = engine.dp_group, engine.current_wave, engine.step_counter
                if (other := seen.setdefault(step, engine.decided)) != engine.decided:
                    raise Fault(f"in one step {other} and {engine.decided}")

    def check_rest(self):
        """Nothing is on its way, and nobody asks for anything: all must rest."""
        if self.lost:
            self._pass_time()
        for place, actor in self.actors.items():
            if actor.at not in ("idle", "ended"):
                where = ", ".join(f"{p}: {a.at}" for p, a in self.actors.items())
                raise Fault(f"hang: nobody comes to rank {place} ({where})")
        if self.lost:
            return
        waves = {self.published[0]}
        for place in self.ranks:
            engine = self.engines[place]
            waves.add(engine.current_wave)
            if engine.engines_running or engine.scheduler.requests:
                raise Fault(f"rank {place} is not at rest")
            if engine.gate and any(map(self._is_name, leaves(shape(engine.gate)))):
                raise Fault(f"the gate of rank {place} remembers a request that ended")
        if self.unfinished or self.client.calls:
            raise Fault(
                f"never answered: {[*self.unfinished]}, {self.client.calls} calls"
            )
        if len(waves) > 1 or self.published[1]:
            raise Fault(f"ranks and coordinator are in different waves: {waves}")

    @staticmethod
    def _is_name(leaf):
        return isinstance(leaf, str) and leaf.startswith("request-")

    def key(self):
        """Equal in states that go on alike."""
        return repr(
            (
                [self._key_of(place) for place in self.engines],
                sorted((str(way), said) for way, said in self.channels.items() if said),
                self.client,
                self.unfinished,
                self.published,
                self.fresh,
                self.switched,
                self.stored(),
            )
        )

    def _key_of(self, place):
        engine, actor = self.engines[place], self.actors[place]
        if actor.at == "ended":
            return place in self.lost
        scheduler, resize = engine.scheduler, engine.eep_scaling_state
        requests = [
            (
                r.request_id,
                r.status.value,
                r.num_computed_tokens,
                len(r.output_token_ids),
                r.num_output_placeholders,
            )
            for r in (
                *scheduler.running,
                *scheduler.waiting,
                *getattr(scheduler, "skipped_waiting", ()),  # of this release
            )
        ]
        in_flight = [o.num_scheduled_tokens for _, o, _ in engine.batch_queue or ()]
        return (
            actor.at,
            requests,
            len(scheduler.running),
            scheduler.pause_state.value,
            len(scheduler.finished_req_ids),
            shape([getattr(engine, name) for name in STATE]),
            engine.step_counter and 1 + (engine.step_counter - 1) % SYNC,
            len(engine._idle_state_callbacks),
            in_flight,
            engine.aborts_queue.qsize(),
            resize and (resize.state.value, resize.worker_type),
            shape(engine.gate),
        )

    def close(self):
        for actor in (*self.actors.values(), self.coordinator):
            actor.kill()


STATE = (
    "engines_running",
    "current_wave",
    "pending_pause",
    "ignore_start_dp_wave",
    "held_for",
)
"""What a rank remembers, beside requests and steps."""
READS = "has_", "is_", "get_", "_is_", "_get_", "rank", "size"
OURS = "vllm.v1.core.sched.balance.", "vllm_balance.core."


def shape(thing):
    """All that an object of ours remembers, as plain values."""
    kind = type(thing)
    if thing is None or kind in (bool, int, float, str):
        return thing
    if kind is Row:
        thing = thing._replace(step=0)
    if kind is watch.RankStatus:
        return thing.doing
    if isinstance(thing, (tuple, list, deque)):
        return [shape(each) for each in thing]
    if isinstance(thing, (set, frozenset)):
        return sorted(map(str, thing))
    if isinstance(thing, dict):
        return {str(key): shape(value) for key, value in thing.items()}
    if kind is Request:
        return thing.request_id
    is_ours = kind.__module__.startswith(OURS) and hasattr(thing, "__dict__")
    if is_ours and kind not in (BalanceStats, watch.Heartbeats):
        return shape(vars(thing))
    return "-"


def leaves(thing):
    if isinstance(thing, dict):
        thing = [*thing, *thing.values()]
    if isinstance(thing, list):
        return itertools.chain.from_iterable(map(leaves, thing))
    return [thing]


class Clock:
    """Of the rank that runs."""

    @staticmethod
    def monotonic():
        return Actor.current.seconds

    time = monotonic

    @staticmethod
    def sleep(seconds):
        actor = Actor.current
        if actor is not actor.world.actors[actor.name]:
            actor.wait("asleep")
        actor.seconds += seconds


def with_constant(function, before, after):
    """Upstream's function with another number in it."""
    code = function.__code__
    constants = tuple(after if each == before else each for each in code.co_consts)
    return FunctionType(code.replace(co_consts=constants), function.__globals__)


def begin_group(config, return_store=False):
    return Actor.current.world.group(config, return_store)


def end_of_process(_):
    raise Stopped


def apart(*_):
    actor = Actor.current
    return actor.world.engines[actor.name].dp_group.apart


def wait_in_barrier():
    """Until somebody has written to the store."""
    world = Actor.current.world
    before = world.stored()
    Actor.current.wait(BARRIER, lambda: world.stored() != before)


@contextlib.contextmanager
def controlled():
    """While worlds run: what stands in for the parts that cannot be driven."""
    engine = core.DPEngineCoreProc
    sync = engine._has_global_unfinished_reqs
    threads = SimpleNamespace(Thread=Thread, Event=Thread)
    no_file = SimpleNamespace(memfd_create=mock.Mock(side_effect=OSError), getpid=int)
    places = [
        (watch, "kill_process_tree", end_of_process),
        (torch.distributed, "PrefixStore", Store),
        (torch.distributed, "all_reduce", all_reduce),
        (group, "init_gloo_process_group", apart),
        (coordinator, "make_zmq_socket", lambda path, **_: Socket(path)),
        (watch, "threading", threads),
        (watch, "os", no_file),
        (torch.distributed, "barrier", lambda group: group.meet(BARRIER, None).wait()),
        (parallel, "cpu_all_reduce_", lambda t, g, **_: all_reduce(t, group=g)),
        (elastic_state, "time", Clock),
        (elastic_state, "sched_yield", wait_in_barrier),
        (elastic_state, "stateless_destroy_torch_distributed_process_group", apart),
        (watch, "time", Clock),
        (gate, "time", Clock),
        (timing, "time", Clock),
        (core, "time", Clock),
        (timing, "EXCHANGE_EVERY_WHEN_OFF", SYNC),
        (core, "freeze_gc_heap", lambda: None),
        (zmq, "Poller", Poller),
        (ParallelConfig, "stateless_init_dp_group", begin_group),
        (engine, "_has_global_unfinished_reqs", with_constant(sync, 32, SYNC)),
    ]
    with contextlib.ExitStack() as stack:
        # Engines cache the environment, which later tests change.
        stack.callback(envs.disable_envs_cache)
        # Each engine logs its whole configuration, of which pytest would keep all.
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        for owner, name, value in places:
            patched = mock.patch.object(owner, name, value, create=True)
            stack.enter_context(patched)  # a later release may lack it
        stack.enter_context(mock.patch.dict(policies.POLICIES, SMALL))
        yield


@contextlib.contextmanager
def recorded():
    """Worlds note each call of upstream's methods, but for those that only read."""

    def noting(function):
        def call(*args, **kwargs):
            calls = Actor.current.world.calls.setdefault(Actor.current.name, [])
            calls.append(function.__qualname__)
            return function(*args, **kwargs)

        return call

    owners = Scheduler, AsyncScheduler, *core.DPEngineCoreProc.__mro__[:3], Group
    with contextlib.ExitStack() as stack:
        for owner in owners:
            for name, each in [*vars(owner).items()]:
                if isinstance(each, FunctionType) and not name.startswith(READS):
                    stack.enter_context(mock.patch.object(owner, name, noting(each)))
        yield
