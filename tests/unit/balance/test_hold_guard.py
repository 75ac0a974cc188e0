"""What holds may cost, whatever a policy has learned."""

import itertools
import math

import pytest
from balance.policies.by_name import MAX_HOLD_STEPS, POLICIES, create_policy
from balance.policies.decision import OPEN, Decision
from balance.policies.hold_guard import Guard
from balance.policies.max_hold_steps import HoldBound
from balance.policies.step_cost import CostLearner, StepCost
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import IDLE, MAX_TOKENS, Ranks, running, snapshot

HOLD = Decision(admit=False, prefill_budget=0, reason="always")
STEP, PREFILL = 0.04, 0.1
"""Seconds."""


class AlwaysHolds:
    """A policy that learned only nonsense."""

    learned = None

    def __init__(self):
        self.seen = []

    def decide(self, rows):
        self.seen.append(rows)
        return HOLD

    def reset(self):
        self.seen.clear()


class Opens(AlwaysHolds):
    def decide(self, rows):
        return OPEN


def timed(*rows, seconds=STEP, **fields):
    us = int(seconds * 1e6)
    return snapshot(row._replace(step_time_us=us, **fields) for row in rows)


def measured(policy=None, ranks=4):
    """A guard that has seen decodes, and prefills of 100 tokens by one rank each."""
    guard = HoldBound(Guard(policy or AlwaysHolds()), MAX_HOLD_STEPS)
    for _ in range(40):
        guard.decide(timed(*[running(6)] * ranks))
        alone = [running(6, prefill_tokens=100), *[running(6)] * (ranks - 1)]
        guard.decide(timed(*alone, seconds=PREFILL))
    return guard


def seconds_held(guard, rows, seconds=STEP):
    """How long the first rank's request is held until the bound in time."""
    for steps in itertools.count(1):
        held = rows[0]._replace(held_steps=steps)
        if guard.decide(timed(held, *rows[1:], seconds=seconds)).admit:
            return steps * seconds
    raise AssertionError


def test_a_lone_request_is_held_for_no_longer_than_its_prefill_takes():
    rows = [running(0, pending=1), *[running(0)] * 3]
    assert seconds_held(measured(), rows) == pytest.approx(PREFILL, abs=STEP)


@pytest.mark.parametrize("seconds", [0.001, STEP, 3.0])
def test_no_request_is_held_longer_than_its_prefill_delays_all(seconds):
    rows = [running(4, pending=1), *[running(3)] * 3]
    bound = (4 + 1 + 3 * 3) * PREFILL
    assert seconds_held(measured(), rows, seconds) <= bound + seconds


FULL = [running(200, pending=1, max_running=256), *[running(200, max_running=256)] * 3]


@pytest.mark.parametrize("share", [0.0, 0.25, 1.0])
def test_nor_than_32_prefills_take_one_after_another(share):
    """A step counts by the share of a whole one that its budget withholds."""
    policy = AlwaysHolds()
    whole = MAX_TOKENS - FULL[0].running
    policy.decide = lambda rows: Decision(True, int(share * whole), "always")
    guard = measured(policy)
    for steps in range(1, 1000):
        held = FULL[0]._replace(held_steps=steps)
        rows = timed(held, *FULL[1:])
        if guard.decide(rows).reason == "hold_bound":
            break
    bound = 32 * PREFILL / (1 - share) if share < 1 else 999 * STEP
    assert steps * STEP == pytest.approx(bound, abs=2 * STEP)


def seconds_pending(usual, comes_every):
    """A request's that always gets some tokens, where most are pending as usual.

    One in twenty-five is pending far longer, and a request comes after so many steps.
    """
    opens = Opens()
    guard = measured(opens)
    for seconds in [*[usual] * 24, 100.0]:
        age = int(seconds * 1e6)
        guard.decide(timed(*[running(50, pending=1, pending_age_us=age)] * 4))
        guard.decide(timed(*[running(50)] * 4))
    opens.decide = AlwaysHolds().decide
    for steps in range(1, 1000):
        first = running(50, pending=1, pending_age_us=int(steps * STEP * 1e6))
        other = running(50, pending=1 + steps // comes_every)
        rows = timed(first, other, *[running(50)] * 2)
        if guard.decide(rows).reason == "hold_bound":
            return steps * STEP
    return math.inf


@pytest.mark.parametrize("usual", [0.1, 0.5])
def test_none_is_pending_longer_than_most_while_nothing_comes(usual):
    bound = 1.5 * usual + 2
    assert seconds_pending(usual, 1000) == pytest.approx(bound, abs=1.5 * STEP)
    assert seconds_pending(0.5, 3) == math.inf, "longer while others come"


def person_seconds(guard, steps, others=60):
    """Lost by holds, and spent in the ranks, while one is pending after another."""
    rows = [running(others // 4, pending=1), *[running(others // 4)] * 3]
    lost = spent = held = 0
    prefilled = False
    for _ in range(steps):
        first = rows[0]._replace(held_steps=held, prefill_tokens=100 * prefilled)
        seconds = PREFILL if prefilled else STEP
        decision = guard.decide(timed(first, *rows[1:], seconds=seconds))
        spent += seconds * (others + 1)
        prefilled = decision.admit
        held = 0 if prefilled else held + 1
        lost += 0 if prefilled else STEP
    return lost, spent


def test_holds_that_save_nothing_cost_one_percent_and_the_first_credit():
    guard = measured()
    credit = 61 * 4 * PREFILL
    for steps in (5_000, 20_000):
        lost, spent = person_seconds(guard, steps)
        assert lost <= 0.011 * spent + credit


def test_a_policy_that_loses_opens_and_is_tried_again():
    guard, reasons = measured(), []
    rows = [running(6, pending=4), *[running(6)] * 3]
    for _ in range(15_000):
        reasons.append(guard.decide(timed(*rows)).reason)
    runs = [reason for reason, _ in itertools.groupby(reasons)]
    assert runs[:3] == ["always", "losing", "always"]
    assert reasons.count("losing") > 10 * reasons.count("always")


def reasons(together=4, share=1.0, pause=None):
    """Ten steps of holds, then so many ranks prefill alike; and some long pauses."""
    guard, found = measured(), set()
    for number in range(4000):
        prefills = number % 11 == 10
        rows = [
            running(6, pending=busy, prefill_tokens=100 * busy * prefills)
            for busy in [True] * together + [False] * (4 - together)
        ]
        seconds = STEP + share * (PREFILL - STEP) if prefills else STEP
        if pause and number % 300 == 7:
            seconds = pause
        found.add(guard.decide(timed(*rows, seconds=seconds)).reason)
    return found


@pytest.mark.parametrize(
    ("world", "loses"),
    [
        ({"together": 1}, True),
        ({"together": 2}, False),
        ({"together": 4}, False),
        ({"share": 4.0}, True),  # the prompts of four ranks take four times as long
        ({"pause": 2.0}, False),
        ({"pause": 60.0}, False),
    ],
    ids=str,
)
def test_what_releases_of_several_ranks_save_pays_for_holds(world, loses):
    assert ("losing" in reasons(**world)) == loses


WRONG = [
    StepCost(0.04, 0.0, own, shared, padding)
    for own, shared, padding in itertools.product((0.0, 1e160), repeat=3)
]


@pytest.mark.parametrize("cost", [*WRONG, StepCost(1e9, 1e9, 1e9, 1e9, 1e9)])
def test_costs_that_were_learned_wrong_hold_no_request_longer(cost, monkeypatch):
    """On the served model: with another one, and among twelve in prefills of 0.22 s."""
    monkeypatch.setattr(CostLearner, "cost", property(lambda _: cost))
    for others in (1, 12):
        policy, ranks = create_policy("adaptive"), Ranks(4)
        for number in range(others):
            ranks.arrive(number % 4, prompt=100, output=3000)
        for _ in range(100):
            ranks.advance(policy.decide(ranks.snapshot()))
        ranks.arrive(0, prompt=100, output=10)
        arrived = ranks.now
        while any(ranks.waiting):
            ranks.advance(policy.decide(ranks.snapshot()))
        assert ranks.now - arrived <= 0.22 * (others + 1) + 0.2


def test_the_policy_sees_every_snapshot():
    policy = AlwaysHolds()
    guard = HoldBound(Guard(policy), max_hold_steps=1)
    guard.decide(snapshot([IDLE._replace(held_steps=1)]))
    assert len(policy.seen) == 1
    guard.reset()
    assert not policy.seen


times = st.sampled_from([0, 1, 40_000, 2_000_000, 10**11])
counts = st.integers(0, 3)


@st.composite
def any_rows(draw, ranks):
    """Rows that upstream could and could not make: also of a rank that gets nothing."""
    time = draw(times)
    rows = []
    for _ in range(ranks):
        run, pending = draw(counts), draw(counts)
        rows.append(
            IDLE._replace(
                running=run,
                decoding=draw(st.integers(0, run)),
                waiting=draw(counts),
                pending=pending,
                pending_tokens=pending * draw(st.sampled_from([0, 1, 10**6])),
                held_steps=draw(st.sampled_from([0, 1, 999])),
                prefill_tokens=draw(st.sampled_from([0, 0, 1, 10**6])),
                step_time_us=time,
                max_running=draw(st.sampled_from([0, 1, 32])),
                max_tokens=draw(st.sampled_from([1, 8192])),
                pending_age_us=draw(times),
                wait_us=draw(times),
            )
        )
    return rows


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=40)
@given(data=st.data(), ranks=st.integers(1, 4))
def test_no_rows_end_in_an_exception_or_in_what_is_no_number(name, data, ranks):
    policy = create_policy(name)
    for _ in range(data.draw(st.integers(1, 30))):
        decision = policy.decide(snapshot(data.draw(any_rows(ranks))))
        assert decision.admit or not decision.prefill_budget
        assert 0 <= (decision.prefill_budget or 0) <= 8192
        if policy.learned:
            assert all(map(math.isfinite, policy.learned.cost))
