"""Data parallel ranks in one process, under a controller: `docs/interleavings.md`.

Real are busy loop, scheduler and coordinator of upstream, and our gate, exchange and
switch. Instead of the model, gloo, its store, sockets, threads, the clock and the
front-end stand those here. A rank stops where it looks for messages, and in a
collective call until all are in it.
"""

import contextlib
import enum
import logging
import math
import queue
from collections import defaultdict, deque
from functools import cached_property, partial
from itertools import chain
from types import FunctionType, SimpleNamespace
from unittest import mock

import msgspec
import torch
import zmq
from greenlet import GreenletExit, getcurrent, greenlet
from vllm import envs
from vllm.config import ParallelConfig, parallel
from vllm.distributed.elastic_ep import elastic_state
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.balance.rank import gate, group, start, timing, watch
from vllm.v1.core.sched.balance.rank.metrics import BalanceStats
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreRequestType as Kind
from vllm.v1.engine import (
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

SYNC = 4
"""Steps between two finish-syncs, 32 of upstream: where it is does not matter."""
HOLD_STEPS = {"off": 0, "cap": 4, "align": 5, "adaptive": 60}
"""For which a prompt that has a slot may be held at most, with `SMALL`."""
SMALL = {
    "cap": partial(policies.Cap, timeout_steps=3),
    "align": partial(policies.Align, timeout_steps=3, batching_steps=2),
}
PASS, BARRIER = "a forward pass", "a barrier of a resize"
LOOKS = "top", "idle"
"""Where a rank is that looks for messages."""
OF_CLIENT = "wave", "running", "requests", "calls", "paused", "resizes", "tells"
"""Calls that were not answered; until rank 0 says that a resize is over, requests are
refused; and once its calls are answered the front-end tells the coordinator."""


class Fault(AssertionError):  # noqa: N818
    """What must hold does not."""


class Actor(greenlet):
    """Runs when it is told to, until it waits for something."""

    current: "Actor"

    def __init__(self, world, name, body):
        super().__init__(body)
        self.world, self.name = world, name
        self.at, self.is_ready, self.seconds = "beginning", lambda: True, 0.0
        self.threads = []
        """Of a rank, besides its busy loop: they run when it is stuck."""

    def resume(self):
        Actor.current, self.parent = self, getcurrent()
        self.world.touched.add(self.name)
        try:
            self.switch()
        except SystemExit:
            pass
        except Fault:
            raise
        except Exception as error:
            if not self.world.lost or type(error) is not RuntimeError:
                raise Fault(f"rank {self.name} died of {error!r}") from error
            self.world.lost[self.name] = str(error)
        if self.dead:
            self.kill()

    def wait(self, what, is_ready=lambda: False):
        """Called by the actor."""
        self.at, self.is_ready = what, is_ready
        self.parent.switch()

    def kill(self):
        for each in (*self.threads, self):
            each.parent = getcurrent()
            each.throw()
            each.at, each.is_ready = "ended", lambda: False


class Thread:
    """Of `threading`, and its `Event`: a rank has threads that watch the others."""

    def __init__(self, target=None, args=(), daemon=True):
        self._body, self._is_set = lambda: target(*args), False

    def start(self):
        rank = Actor.current
        rank.threads.append(Actor(rank.world, rank.name, self._body))

    def wait(self, timeout):
        Actor.current.wait("asleep")
        return self._is_set

    def set(self):
        self._is_set = True


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


class Store:
    """A store of torch.distributed, or a part of it."""

    def __init__(self, prefix="", store=None):
        self._prefix, self.data = prefix, {} if store is None else store.data

    def clone(self):
        return self

    def set(self, key, value):
        Actor.current.world.touched.add("store")
        value = value.encode() if isinstance(value, str) else value
        self.data[self._prefix + key] = value

    def compare_set(self, key, _, value):
        self.set(key, value)

    def add(self, key, more):
        self.set(key, str(int(self.get(key)) + more))

    def get(self, key):
        return self.data.get(self._prefix + key, b"0")

    def delete_key(self, key):
        self.data.pop(self._prefix + key, None)

    def multi_get(self, keys):
        return [*map(self.get, keys)]

    def check(self, keys):
        return all(self._prefix + key in self.data for key in keys)

    def wait(self, keys, timeout=None):
        if not self.check(keys):
            Actor.current.wait("a key of the store", lambda: self.check(keys))


class Call:
    """A collective call: it ends once all ranks of the group are in it."""

    def __init__(self, group, kind):
        self.group, self.kind, self.values, self.ends_at = group, kind, {}, 0.0

    def is_whole(self):
        return len(self.values) == self.group.size()

    def is_over(self):
        """Or broken: gloo notices that somebody is lost, a device does not."""
        lost = self.group.world.lost.keys() & {*range(self.group.size())}
        is_broken = self.kind != PASS and not lost <= self.values.keys()
        return self.is_whole() or is_broken

    def wait(self, timeout=None):
        """What each rank gave."""
        actor = Actor.current
        if not self.is_whole():
            actor.wait(self.kind, self.is_over)
        if not self.is_whole():
            raise RuntimeError("Connection closed by peer")
        actor.seconds = max(actor.seconds, self.ends_at)
        return [value for _, value in sorted(self.values.items())]


class Group:
    """A process group, and that of the devices; its ranks share it."""

    def __init__(self, world, size, name=""):
        self.world, self.store, self._name = world, Store(), name
        self.rank, self.size = lambda: Actor.current.name, lambda: size
        self.get_group_store = lambda: self.store
        self._calls = defaultdict(list)

    @cached_property
    def apart(self):
        return Group(self.world, self.size(), " of its own")

    def meet(self, kind, value=None, seconds=0.0):
        """The n-th call of a rank is the n-th of the others, or the ranks are lost."""
        calls, rank, kind = self._calls[kind == PASS], self.rank(), kind + self._name
        call = next((each for each in calls if rank not in each.values), None)
        if call is None:
            calls.append(call := Call(self, kind))
        if call.kind != kind:
            raise Fault(f"rank {rank} is in {kind}, others in {call.kind}")
        call.values[rank] = value
        call.ends_at = max(call.ends_at, Actor.current.seconds + seconds)
        if call.is_whole():
            calls.remove(call)
        return call

    def alltoall_base(self, received, sent, *_):
        call, rank = self.meet("the exchange", sent.clone()), self.rank()

        def wait(timeout):
            received.copy_(torch.stack([each[rank] for each in call.wait()]))

        return SimpleNamespace(wait=wait)


def all_reduce(tensor, op=torch.distributed.ReduceOp.SUM, group=None):
    name = "sum" if op == torch.distributed.ReduceOp.SUM else "max"
    call = group.meet(f"an all-reduce ({name} of {tensor.numel()})", tensor.clone())
    values = torch.stack(call.wait())
    tensor.copy_(values.sum(0) if name == "sum" else values.amax(0))


class Device(StandInExecutor):
    """Forward passes of all ranks meet, and take time where a policy asks for it."""

    def _forward(self, tokens, value=None):
        actor = Actor.current
        seconds = actor.world.setting.step_s * (1 + tokens / 4)
        group = actor.world.engines[actor.name].dp_group
        call = group.meet(PASS, seconds=seconds)
        return SimpleNamespace(result=lambda: call.wait() and value)

    def execute_model(self, scheduler_output, non_block=False):
        done = super().execute_model(scheduler_output, non_block)
        if tokens := scheduler_output.total_num_scheduled_tokens:
            self._pass = self._forward(tokens, self._output)
            return SimpleNamespace(result=lambda: self._pass.result() and None)
        return done

    def sample_tokens(self, grammar_output, non_block=False):
        return self._pass if non_block else self._pass.result()

    def execute_dummy_batch(self):
        self._forward(0).result()


class Inbox(queue.Queue):
    """The input queue: a rank that finds it empty may get a message first."""

    def __init__(self, engine):
        super().__init__()
        self._engine = engine

    def empty(self):
        blocks = self._engine.process_input_queue_block
        if not self.queue and (self._engine.has_work() or not blocks):
            Actor.current.wait("top")
        return super().empty()

    def get(self, block=True, timeout=None):
        if not self.queue and block:
            Actor.current.wait("idle")
        return super().get(block=False)


class Rank(LoopEngine):
    """A rank, and what must hold in each of its steps."""

    executor = Device

    def __init__(self, config, world, place):
        self.world, self.place = world, place
        world.engines[place] = self
        self.held_for = {}
        super().__init__(config, Trace())
        self.gate = getattr(self.scheduler, "balance_gate", None)
        self.dp_sync_interval = SYNC  # of a later release
        self.input_queue = Inbox(self)
        self.output_queue = SimpleNamespace(put_nowait=partial(world.hear, place))
        self.output_thread = mock.Mock()

    def _record(self, output):
        if self.gate is None:
            return
        decision, scheduler = self.gate.decision, self.scheduler
        holds, budget = not decision.admit, decision.prefill_budget
        if output.scheduled_new_reqs and (holds or budget == 0):
            raise Fault(f"rank {self.place} admits a prompt while it holds")
        if self.step_counter == 0 and (holds or budget is not None):
            raise Fault(f"rank {self.place} begins a wave with a hold")
        is_full = len(scheduler.running) >= scheduler.max_num_running_reqs
        waits = [] if is_full or scheduler.pause_state.value else scheduler.waiting
        before = self.held_for
        self.held_for = {r.request_id: before.get(r.request_id, 0) + 1 for r in waits}
        name = "adaptive" if self.world.switched else self.gate.switch.name
        if max(self.held_for.values(), default=0) > HOLD_STEPS[name]:
            raise Fault(f"rank {self.place} holds prompts for {self.held_for} steps")


def serve(*arguments):
    Rank(*arguments).run_busy_loop()


class Socket:
    """Of the coordinator."""

    def __init__(self, path):
        world = Actor.current.world
        self.inbox = deque([b"\x01"] * len(world.ranks) if path == "back" else [])
        self.send = self.send_multipart = partial(world.publish, path)
        self.recv = self.inbox.popleft
        world.sockets[path] = self


class Poller(list):
    def register(self, socket, flags):
        self.append(socket)

    def poll(self, timeout):
        if not any(socket.inbox for socket in self):
            Actor.current.wait("idle", lambda: any(socket.inbox for socket in self))
        return [(socket, zmq.POLLIN) for socket in self if socket.inbox]


class World:
    """One run: `options` are what may happen next, and `take` is that it does."""

    def __init__(self, setting, configs):
        self.setting, self.ranks = setting, range(setting.ranks)
        self.budget, self.switched = setting.events, False
        self.groups, self.engines, self.sockets = {}, {}, {}
        self.channels = defaultdict(deque)
        """What was sent, by sender and receiver."""
        self.touched = set()
        """Whom the last choice concerned: those who ran, and what all share."""
        self.lost = {}
        """Ranks that have ended, or will never answer, and why."""
        self.client = SimpleNamespace(ticket=first_ticket(setting.policy))
        """What upstream's `DPAsyncMPClient` knows, and its client."""
        vars(self.client).update(dict.fromkeys(OF_CLIENT, 0))
        self.unfinished, self.published = {}, [0, False]
        self.calls = defaultdict(list)
        """By rank, if they are `recorded`."""
        self.late = dict.fromkeys([*self.ranks, "client", "coordinator"], 0)
        """Steps that a rank has made since the first message that waits for it."""
        self.turns = [*self.ranks]
        """Who has waited longest for one comes first."""
        self.actors = {
            place: Actor(self, place, partial(serve, config, self, place))
            for place, config in enumerate(configs)
        }
        self.coordinator = Actor(self, "coordinator", self._coordinate)
        self.settle()

    def _coordinate(self):
        process = object.__new__(coordinator.DPCoordinatorProc)
        process.ctx, process.stats_update_interval_ms = None, 100
        process.engines = [coordinator.EngineState() for _ in self.ranks]
        process.enable_wave_coordination = True
        process.process_input_socket("front", "output", "back")

    # What ranks and coordinator send.

    def hear(self, place, message):
        """Outputs of a rank."""
        if isinstance(message, bytes):
            return
        _, outputs = message
        if outputs.wave_complete is not None or outputs.start_wave is not None:
            outputs.engine_index, outputs.timestamp = place, 0.0
            self._post(place, outputs)
        if called := outputs.utility_output:
            self._answered(place, called)
        for output in outputs.outputs:
            if output.finish_reason is not None:
                self.touched.add("client")
                self.unfinished.pop(output.request_id, None)

    def _answered(self, place, called):
        client = self.client
        self.touched.add("client")
        if called.call_id < 0:  # the ranks that stay have met, or another has left
            client.resizes &= place > 0
            return
        if called.failure_message and not self.lost:
            raise Fault(f"rank {place}: {called.failure_message}")
        client.calls -= 1
        if client.tells and not client.calls:
            client.tells = False
            self._post("client", ("SCALE_ELASTIC_EP", len(self.ranks)))

    def _post(self, sender, message):
        said = msgspec.msgpack.encode(message)
        self.channels[sender, "coordinator"].append(said)

    def publish(self, path, message):
        """What the coordinator tells front-ends or ranks."""
        if path == "front":
            _, *self.published = msgspec.msgpack.decode(message)
            self._put("coordinator", "client", self.published)
        elif isinstance(message, tuple):
            start = Kind.START_DP_WAVE, (*msgspec.msgpack.decode(message[1]),)
            for rank in self.actors:
                self._put("coordinator", rank, start)

    def _put(self, sender, to, message):
        self.channels[sender, to].append(message)
        if self.setting.latest < math.inf:  # whether it waits is of concern
            self.touched.add(to)

    # Choices.

    def options(self):
        """What may happen now; the first, taken again and again, leads to rest."""
        ways = [way for way, said in self.channels.items() if said]
        found = [f"deliver {a} {b}" for a, b in ways if self._hears(a, b)]
        tops = [r for r in self.turns if self.actors[r].at == "top"]
        found += [f"run {r}" for r in tops if self.late[r] < self.setting.latest]
        stuck = [r for r, actor in self.actors.items() if actor.at == BARRIER]
        found = found or [f"expire {r}" for r in stuck]
        events = self.setting.alphabet if self.budget else []
        events = ["resume", *events] if self.client.paused else events
        for event in dict.fromkeys(events):
            verb, *what = event.split()
            if self._may(verb, *what):
                to = [b for b in self._goes_to(verb, *what) if self._hears("client", b)]
                found += [f"{event} > {b}" for b in to] or [event]
        return found

    def _hears(self, sender, to, verb=""):
        """Whether the next message would come; an abort also does after a step."""
        at = self.actors[to].at if to in self.actors else "idle"
        said = self.channels[sender, to]
        is_abort = said[0][0] == Kind.ABORT if said else verb == "abort"
        return at in LOOKS or (at == PASS and is_abort)

    def _may(self, verb, place="0", *_):
        client = self.client
        if verb == "abort":
            return bool(self.unfinished)
        if verb == "request":
            return not client.resizes and int(place) in self.ranks
        if verb in ("pause", "resume"):
            return not client.calls and not (verb == "pause" and client.paused)
        is_free = not client.resizes and not client.paused and len(self.ranks) > 1
        return is_free or verb == "switch"

    def _goes_to(self, verb, place="", *_):
        """An event is taken once somebody hears of it, one after the other first."""
        if verb == "request":
            return [int(place)] + ["coordinator"] * (not self.client.running)
        if verb == "abort":
            return [*self.unfinished.values()][:1]
        return [] if verb == "lose" else self.ranks

    def is_quiet(self, options):
        """Whether nothing but an event could go on."""
        moves = [each for each in options if each.startswith(("deliver", "run", "exp"))]
        return not moves and not self.client.paused

    def in_any_order(self, options):
        """If the first choice comes before the others as well as after each: all."""
        first = "deliver coordinator client"
        if not self.budget and first in options:  # it makes no request any more
            return [first, *(each for each in options if each != first)]
        tops = [self.engines[r] for r in self.turns if self.actors[r].at == "top"]
        # Ranks on their way to the next collective call: until then none sends.
        meet = len(options) == len(tops) and not any(e.eep_scaling_state for e in tops)
        return options if meet and not self.budget and not self.lost else []

    def take(self, choice):
        choice, _, first = choice.partition(" > ")
        verb, *what = choice.split()
        self.touched = set()
        if verb in ("run", "expire"):
            place = int(what[0])
            self.turns.remove(place)
            self.turns.append(place)
            if self.setting.latest < math.inf and any(
                to == place and said for (_, to), said in self.channels.items()
            ):
                self.late[place] += 1
            # Upstream's ranks wait for 5 seconds.
            self.actors[place].seconds += 6 * (verb == "expire")
            self.actors[place].resume()
        elif verb == "deliver":
            self._deliver(*what)
        else:
            self.budget -= not (verb == "resume" and self.client.paused)
            getattr(self, f"_{verb}")(*what)
            self.touched |= {"client", "wave"}
            if first:
                self._deliver("client", first)
        if verb in ("expire", "lose", "resize"):
            self.touched |= {"client", "wave", "coordinator", *self.actors}
        self.settle()

    def settle(self):
        """Lets all run that do not wait for a choice."""
        while ready := [actor for actor in self._all() if actor.is_ready()]:
            ready[0].resume()
        self._compare()

    def _all(self):
        threads = [thread for rank in self.actors.values() for thread in rank.threads]
        return [*self.actors.values(), self.coordinator, *threads]

    def stored(self):
        """What ranks that come to a resize tell each other."""
        data = [group.store.data for group in self.groups.values()]
        return [{k: v for k, v in each.items() if "eep" in k} for each in data]

    def _deliver(self, *way):
        sender, to = (int(each) if each.isdigit() else each for each in way)
        message = self.channels[sender, to].popleft()
        self.touched.add("wave" if to == "client" else to)
        self.late[to] = 0
        if to == "client":
            self.client.wave, self.client.running = message
        elif to == "coordinator":
            socket = self.sockets["front" if sender == "client" else "output"]
            socket.inbox.append(message)
        else:
            engine, actor = self.engines[to], self.actors[to]
            engine.input_queue.put_nowait(message)
            if message[0] == Kind.ABORT:
                engine.aborts_queue.put_nowait(message[1])
            if actor.at in LOOKS:
                actor.resume()

    # Events, each of the front-end.

    def _send(self, ranks, kind, *payload):
        for rank in ranks:
            self._put("client", rank, (kind, payload))

    def _request(self, place, tokens):
        client, name = self.client, f"request-{self.client.requests}"
        client.requests += 1
        self.unfinished[name] = int(place)
        asked = SamplingParams(max_tokens=int(tokens), ignore_eos=True)
        request = Request(name, [1] * 4, asked, None, arrival_time=0.0)
        self._send([int(place)], Kind.ADD, request, client.wave)
        if not client.running:
            client.running = True
            self._post("client", [int(place), client.wave])

    def _abort(self):
        name, place = next(iter(self.unfinished.items()))
        del self.unfinished[name]
        self._send([place], Kind.ABORT, name)

    def _call(self, method, *arguments, of=None):
        ranks = self.ranks if of is None else of
        self.client.calls += len(ranks)
        self._send(ranks, Kind.UTILITY, 0, 0, method, arguments)

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
        *stay, leaves = self.ranks
        keep = ReconfigureRankType.KEEP_CURRENT_RANK
        end = ReconfigureRankType.SHUTDOWN_CURRENT_RANK
        for ranks, what in ((stay, keep), ([leaves], end)):
            asked = ReconfigureDistributedRequest(len(stay), what, keep, "", 0, [], 0)
            self._call("reinitialize_distributed", asked, of=ranks)
        self.client.resizes = self.client.tells = True
        self.ranks = range(leaves)
        self.unfinished = {n: r for n, r in self.unfinished.items() if r < leaves}

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
            if actor.at == PASS and any(thread.dead for thread in actor.threads):
                self.lost[place] = "ended by its watch"
                actor.kill()
        self.settle()

    # What must hold.

    def _compare(self):
        """Ranks that are in the same step decide alike."""
        seen = {}
        for place, engine in self.engines.items():
            if engine.gate and self.actors[place].at in LOOKS:
                step = engine.dp_group, engine.current_wave, engine.step_counter
                mine = engine.gate.switch.name, engine.gate.decision
                if (other := seen.setdefault(step, mine)) != mine:
                    raise Fault(f"in one step {other} and {mine}")

    def check_rest(self):
        """Nothing is on its way, and nobody asks for anything: all must rest."""
        if self.lost:
            self._pass_time()
        where = {place: actor.at for place, actor in self.actors.items()}
        for place, at in where.items():
            if at not in ("idle", "ended"):
                raise Fault(f"hang: nobody comes to rank {place} ({where})")
        if self.lost:
            return
        waves = {self.published[0]}
        for place in self.ranks:
            engine = self.engines[place]
            waves.add(engine.current_wave)
            if engine.engines_running or engine.scheduler.requests:
                raise Fault(f"rank {place} is not at rest")
            if engine.gate and "request-" in repr(shape(engine.gate)):
                raise Fault(f"the gate of rank {place} remembers a request that ended")
        if self.unfinished or self.client.calls:
            asked = f"{[*self.unfinished]}, {self.client.calls} calls"
            raise Fault(f"never answered: {asked}")
        if len(waves) > 1 or self.published[1]:
            raise Fault(f"ranks and coordinator are in different waves: {waves}")

    def key(self):
        """Equal in states that go on alike."""
        said = {str(way): shape(each) for way, each in self.channels.items() if each}
        ranks = [self._key_of(*each) for each in self.engines.items()]
        rest = self.unfinished, self.published, self.switched, self.ranks, self.late
        return repr((ranks, sorted(said.items()), self.client, rest, self.stored()))

    def _key_of(self, place, engine):
        if self.actors[place].at == "ended":
            return place in self.lost
        step = engine.step_counter and 1 + (engine.step_counter - 1) % SYNC
        queues = [getattr(engine.scheduler, name, ()) for name in OF_SCHEDULER]
        return self.actors[place].at, step, shape([engine, queues])

    def close(self):
        for actor in (*self.actors.values(), self.coordinator):
            actor.kill()


OF_SCHEDULER = (
    "running",
    "waiting",
    "skipped_waiting",
    "finished_req_ids",
    "pause_state",
)
REMEMBERED = {
    Rank: "engines_running current_wave pending_pause ignore_start_dp_wave held_for "
    "_idle_state_callbacks batch_queue aborts_queue input_queue eep_scaling_state gate",
    Request: "request_id status num_computed_tokens num_output_tokens "
    "num_output_placeholders",
    SchedulerOutput: "num_scheduled_tokens",
    elastic_state.ElasticEPScalingState: "state worker_type",
    queue.Queue: "queue",
    Inbox: "queue",
    watch.Heartbeats: "",
    BalanceStats: "",
}
"""What counts of objects of upstream, of which releases may lack some."""
REMEMBERED = {kind: names.split() for kind, names in REMEMBERED.items()}
OURS = "vllm.v1.core.sched.balance.", "vllm_balance.core."


def shape(thing, seen=None):
    """All that counts of an object, as plain values; of one met before, its number."""
    kind, seen = type(thing), {} if seen is None else seen
    if thing is None or kind in (bool, int, float, str, bytes):
        return thing
    if isinstance(thing, enum.Enum):
        return thing.name
    if kind is Row:
        thing = thing._replace(step=0)
    if kind is watch.RankStatus:
        return thing.doing
    if isinstance(thing, (tuple, list, deque)):
        return [shape(each, seen) for each in thing]
    if isinstance(thing, (set, frozenset)):
        return sorted(map(str, thing))
    if isinstance(thing, dict):
        return {str(key): shape(value, seen) for key, value in thing.items()}
    names = REMEMBERED.get(kind)
    if names is None:
        if not kind.__module__.startswith(OURS) or not hasattr(thing, "__dict__"):
            return "-"
        names = vars(thing)
    if id(thing) in seen:
        return seen[id(thing)]
    seen[id(thing)] = len(seen)
    return [shape(getattr(thing, name, None), seen) for name in names]


def with_constant(function, before, after):
    """Upstream's function with another number in it."""
    code = function.__code__
    constants = tuple(after if each == before else each for each in code.co_consts)
    return FunctionType(code.replace(co_consts=constants), function.__globals__)


def begin_group(config, return_store=False):
    world, size = Actor.current.world, config.data_parallel_size
    found = world.groups.setdefault(size, Group(world, size))
    return (found, found.store) if return_store else found


def end_of_process(_):
    raise GreenletExit


def apart(*_):
    actor = Actor.current
    return actor.world.engines[actor.name].dp_group.apart


def wait_in_barrier():
    """Until somebody has written to the store."""
    world = Actor.current.world
    before = world.stored()
    Actor.current.wait(BARRIER, lambda: world.stored() != before)


@contextlib.contextmanager
def controlled(more=()):
    """While worlds run: what stands in for the parts that cannot be driven."""
    engine, no_file = core.DPEngineCoreProc, mock.Mock(side_effect=OSError)
    sync = with_constant(engine._has_global_unfinished_reqs, 32, SYNC)
    destroy = "stateless_destroy_torch_distributed_process_group"
    clocks = [(each, "time", Clock) for each in (elastic_state, watch, gate, timing)]
    places = [
        *clocks,
        (core, "time", Clock),
        (watch, "threading", SimpleNamespace(Thread=Thread, Event=Thread)),
        (watch, "os", SimpleNamespace(memfd_create=no_file, getpid=int)),
        (watch, "kill_process_tree", end_of_process),
        (group, "init_gloo_process_group", apart),
        (timing, "EXCHANGE_EVERY_WHEN_OFF", SYNC),
        (torch.distributed, "PrefixStore", Store),
        (torch.distributed, "all_reduce", all_reduce),
        (torch.distributed, "barrier", lambda group: group.meet(BARRIER).wait()),
        (parallel, "cpu_all_reduce_", lambda t, g, **_: all_reduce(t, group=g)),
        (ParallelConfig, "stateless_init_dp_group", begin_group),
        (elastic_state, "sched_yield", wait_in_barrier),
        (elastic_state, destroy, apart),
        (engine, "_has_global_unfinished_reqs", sync),
        (core, "freeze_gc_heap", lambda: None),
        # Each rank would leave a thread that watches the process that explores.
        (start, "end_with_parent", lambda: None),
        (coordinator, "make_zmq_socket", lambda path, **_: opened(Socket(path))),
        (zmq, "Poller", Poller),
    ]
    with contextlib.ExitStack() as stack:
        # Engines cache the environment, which later tests change.
        stack.callback(envs.disable_envs_cache)
        # Each engine logs its whole configuration, of which pytest would keep all.
        stack.callback(logging.disable, logging.root.manager.disable)
        logging.disable(logging.CRITICAL)
        for place in chain(places, more):
            # A later release may lack it.
            stack.enter_context(mock.patch.object(*place, create=True))
        stack.enter_context(mock.patch.dict(policies.POLICIES, SMALL))
        yield


opened = contextlib.nullcontext
READS = "has_", "is_", "get_", "_is_", "_get_", "rank", "size"


def recorded():
    """That worlds note the calls of methods of upstream that do not only read."""

    def noting(function):
        def call(*args, **kwargs):
            Actor.current.world.calls[Actor.current.name].append(function.__qualname__)
            return function(*args, **kwargs)

        return call

    for owner in (Scheduler, AsyncScheduler, *core.DPEngineCoreProc.__mro__[:3], Group):
        for name, each in [*vars(owner).items()]:
            if isinstance(each, FunctionType) and not name.startswith(READS):
                yield owner, name, noting(each)
