"""Another policy while ranks serve: all take it in one step, and nobody notices."""

import importlib
import itertools
import random
from collections import defaultdict

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.entrypoints.serve import instrumentator
from vllm.entrypoints.serve.instrumentator import basic
from vllm.v1.core.sched.balance.front.policy_route import KEY, PATH

from dp_ranks import HOW, QUIET_S, Ranks, burst, loop_arguments
from test_waves import CheckedEngine
from vllm_balance.core.policies.switch_ticket import (
    NAMES,
    first_ticket,
    next_ticket,
)
from vllm_server import free_port


class SwitchedEngine(CheckedEngine):
    """Notes which policy each step was scheduled with."""

    def _record(self, output):
        super()._record(output)
        gate = self.scheduler.balance_gate
        place = self.current_wave, self.step_counter
        self.trace.steps[-1] = (*place, gate.switch.name, gate.decision)


def policies(reports):
    """By wave and step, with which policies and decisions ranks scheduled it."""
    found = defaultdict(set)
    for trace, _ in reports:
        for wave, step, *what in trace.steps:
            found[wave, step].add(tuple(what))
    return found


def run(model, size=2, policy="adaptive", **arguments):
    return Ranks(
        size,
        arguments.pop("engine", SwitchedEngine),
        **loop_arguments(model, data_parallel_balance=policy, **arguments),
    )


def end(ranks):
    """Everything was answered, and nothing is left."""
    ranks.drain()
    reports = ranks.stop()
    assert [left for _, left in reports] == [0] * len(reports)
    assert [trace.violations for trace, _ in reports] == [[]] * len(reports)
    return reports


def test_groups_that_shrink_and_grow_take_the_newest(moe_model):
    """Four ranks become twice two, of which one half switches, and four again."""
    ports = [free_port() for _ in range(3)]
    splits, joins = 40, 200

    class Resized(SwitchedEngine):
        def _process_engine_step(self):
            half, place = divmod(self.dp_rank, 2)
            if (self.current_wave, self.step_counter) == (0, splits):
                self._join(ports[half], place, 2)
                if half:
                    self.balance_policy(next_ticket(first_ticket("adaptive"), "off"))
            if (self.current_wave, self.step_counter) == (0, joins):
                self._join(ports[2], self.dp_rank, 4)
            return super()._process_engine_step()

        def _join(self, port, place, size):
            self.dp_group = stateless_init_torch_distributed_process_group(
                "127.0.0.1", port, place, size, "gloo"
            )

    with run(moe_model, 4, engine=Resized, max_model_len=512, **HOW["async"]) as ranks:
        ranks.running = True  # no start of a wave: each begins with its own request
        for rank in range(4):
            ranks.submit(rank, f"long-{rank}", 5, joins + 60)
        for number in range(6):
            burst(ranks, random.Random(number), f"burst-{number}", 12, aborts=True)
        reports = end(ranks)
    found = policies(reports)
    assert all(len(found[place]) == 1 for place in found if place > (0, joins + 2))
    names = {place: {name for name, _ in what} for place, what in found.items()}
    assert names[0, splits] == {"adaptive"}
    assert names[0, joins - 1] == {"adaptive", "off"}, "the halves, apart"
    assert names[0, joins + 2] == {"off"}


@pytest.mark.parametrize(("key", "status"), [("", 404), ("k", 401)])
def test_the_route_is_among_those_that_servers_of_all_models_have(
    key, status, monkeypatch
):
    """Also those that only embed. With a key in the server's environment alone."""
    with monkeypatch.context() as patched:
        patched.setenv(KEY, key)
        importlib.reload(basic)
        app = FastAPI()
        instrumentator.register_instrumentator_api_routers(app)
        assert TestClient(app).get(PATH).status_code == status
    importlib.reload(basic)


REQUESTS, SWITCHES = 300, 200
"""In the steps of so many requests there are more switches."""
KNOWN = 100
"""More objects than a gate knows of so few requests, whatever was before."""


class SwitchingEngine(SwitchedEngine):
    """Each rank asks for another policy as soon as the last switch was made."""

    def _record(self, output):
        super()._record(output)
        gate, trace = self.scheduler.balance_gate, self.trace
        rows = gate._rows
        since, prompts = rows._ages._since, rows._order._prompts
        known = gate.switch._policies, rows.pending, since, prompts
        trace.known = max(trace.known, sum(map(len, known)))
        if gate.switch.is_followed:
            rng = random.Random(self.step_counter + self.dp_rank)
            # `off` seldom: the ranks hear of no ticket for 32 steps then.
            others = [
                name for name in (*NAMES, *NAMES[1:] * 2) if name != gate.switch.name
            ]
            self.balance_policy(next_ticket(gate.switch.ticket, rng.choice(others)))


def test_switches_under_load_leave_nothing_behind(moe_model):
    rng, sent = random.Random(5), 0
    with run(moe_model, engine=SwitchingEngine, **HOW["async"]) as ranks:
        while sent < REQUESTS:
            if len(ranks.unfinished) < 16:
                burst(ranks, rng, f"{sent}", 6, tokens=(100, 100))
                sent += 6
            ranks._handle(ranks._next(QUIET_S))
        reports = end(ranks)
        answers = ranks.answers
    assert len(answers) == sent
    assert {token for answer in answers for token in answer} == {7}
    found = policies(reports)
    assert {place: what for place, what in found.items() if len(what) > 1} == {}
    names = [name for _, ((name, _),) in sorted(found.items())]
    assert sum(a != b for a, b in itertools.pairwise(names)) > SWITCHES
    assert {*names} == {*NAMES}
    assert sum(trace.closed for trace, _ in reports) > 0, "nothing was ever held"
    assert max(trace.known for trace, _ in reports) < KNOWN
