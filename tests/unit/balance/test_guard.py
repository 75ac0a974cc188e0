"""What holds may cost, whatever a policy has learned."""

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import IDLE, MAX_TOKENS, Ranks, rows, running, snapshot

from vllm_balance.core.policies import create_policy
from vllm_balance.core.policies.cost import CostFit, StepCost
from vllm_balance.core.policies.decision import Decision
from vllm_balance.core.policies.guard import Guard

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

    def forget_costs(self):
        pass


def timed(*rows, seconds=STEP, **fields):
    us = int(seconds * 1e6)
    return snapshot(row._replace(step_time_us=us, **fields) for row in rows)


def measured(policy=None, ranks=4):
    """A guard that has seen decodes, and prefills of 100 tokens by one rank each."""
    guard = Guard(policy or AlwaysHolds())
    for _ in range(40):
        guard.decide(timed(*[running(3)] * ranks))
        alone = [running(6, prefill_tokens=100), *[running(6)] * (ranks - 1)]
        guard.decide(timed(*alone, seconds=PREFILL))
    return guard


def held(rows, steps, seconds=STEP):
    """These rows after so many steps, for which the first has had somebody pending."""
    first = rows[0]._replace(pending_age_us=int(steps * seconds * 1e6))
    return timed(first, *rows[1:], seconds=seconds)


def seconds_held(guard, rows, seconds=STEP):
    """How long the first rank's request is held until the bound in time."""
    for steps in range(100_000):
        if guard.decide(held(rows, steps, seconds)).reason == "hold_bound":
            return steps * seconds
    raise AssertionError


@pytest.mark.parametrize(("seconds", "pending"), [(0.001, 60), (STEP, 6), (3.0, 1)])
def test_nobody_is_held_longer_than_the_prefills_of_all_others_take(seconds, pending):
    rows = [running(2000, pending=pending, max_running=9999), *[running(2000)] * 3]
    bound = max(3 * 3, pending - 1) * PREFILL
    held = seconds_held(measured(), rows, seconds)
    assert bound - seconds <= held <= bound + seconds


@pytest.mark.parametrize(("waited", "bound"), [(1, 0.9), (60, 30)])
def test_who_waits_for_prompts_before_it_is_held_for_a_share_of_that(waited, bound):
    """A third of its whole time, as soon as that is more."""
    policy = AlwaysHolds()
    guard, rows = measured(policy), [running(200, pending=1), *[running(200)] * 3]
    policy.decide = lambda _: Decision(True, None, "open")
    steps = round(waited / STEP)
    for number in range(steps):
        guard.decide(held(rows, number))
    policy.decide = lambda _: HOLD
    reasons = [guard.decide(held(rows, steps + n)).reason for n in range(2000)]
    assert set(reasons) == {"always", "hold_bound"}
    found = reasons.index("hold_bound") * STEP
    assert found == pytest.approx(bound, abs=2 * STEP)


def test_a_step_with_a_budget_counts_by_what_it_withholds():
    rows = [running(400, pending=n) for n in (1, 0, 0, 0)]
    policy = AlwaysHolds()
    policy.decide = lambda _: Decision(True, (MAX_TOKENS - 400) // 4, "always")
    bound = 3 * 3 * PREFILL / (1 - 1 / 4)
    assert seconds_held(measured(policy), rows) == pytest.approx(bound, abs=2 * STEP)


def test_a_prefill_whose_time_is_divided_counts_whole():
    """Where a launch returns in the midst of a step, two times are of it."""
    guard, prefill = Guard(AlwaysHolds(), in_flight=2), 1.0
    alone = [running(6, prefill_tokens=100), *[running(6)] * 3]
    for _ in range(100):
        guard.decide(timed(*alone, seconds=(prefill + STEP) / 2))
        guard.decide(timed(*[running(6)] * 4, seconds=(prefill + STEP) / 2))
        guard.decide(timed(*[running(6)] * 4))
    rows = [running(2000, pending=1, max_running=9999), *[running(2000)] * 3]
    assert seconds_held(guard, rows) == pytest.approx(3 * 3 * prefill, rel=0.1)


def test_what_became_pending_late_was_not_held_before():
    guard, rows = measured(), [running(4, pending=1), *[running(3)] * 3]
    steps = round(seconds_held(measured(), rows) / STEP)
    for _ in range(steps - 1):
        guard.decide(held(rows, 0))
    assert guard.decide(held(rows, 2)).reason == "always"


@pytest.mark.parametrize("decoding", [20, 800])
def test_holds_that_save_nothing_cost_one_percent_and_the_first_credit(decoding):
    """In person-seconds, of all that are in the ranks."""
    guard = measured()
    rows = [running(decoding // 4, pending=1), *[running(decoding // 4)] * 3]
    lost, steps, prefilled = 0, 0, False
    for number in range(20_000):
        first = rows[0]._replace(prefill_tokens=100 * prefilled)
        seconds = PREFILL if prefilled else STEP
        decision = guard.decide(held([first, *rows[1:]], steps, seconds))
        prefilled = decision.admit
        steps = 0 if prefilled else steps + 1
        lost += 0 if prefilled else STEP
        everybody = decoding + 1
        allowed = everybody * (0.011 * (number + 1) * PREFILL + 8 * PREFILL)
        assert lost <= allowed


def test_a_policy_that_loses_opens_and_is_tried_again():
    guard, reasons = measured(), []
    rows = [running(6, pending=40, max_running=99), *[running(6)] * 3]
    for _ in range(15_000):
        reasons.append(guard.decide(timed(*rows)).reason)
    runs = [reason for reason, _ in itertools.groupby(reasons)]
    assert runs[:3] == ["always", "losing", "always"]
    assert reasons.count("losing") > 10 * reasons.count("always")


def test_holds_are_ended_once_they_took_a_prefill_of_each_rank():
    """From a request that nobody else's release could ever pay for."""
    guard, steps = measured(), 0
    rows = [running(6, pending=40, max_running=99), *[running(6)] * 3]
    while guard.decide(timed(*rows)).reason != "losing":
        steps += 1
    assert 0 < 40 * STEP * steps < 4 * PREFILL * len(rows) * 6, "of all that decode"


def reasons(together=4, share=1.0, pause=None):
    """Three steps of holds, then so many ranks prefill alike; and some long pauses."""
    guard, found = measured(), set()
    for number in range(4000):
        prefills = number % 4 == 3
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
        ({"together": 3}, False),
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
    monkeypatch.setattr(CostFit, "cost", property(lambda _: cost))
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
        assert ranks.now - arrived <= 0.22 * max(9, others) + 0.22 + 0.2


def test_the_policy_sees_every_snapshot():
    policy = AlwaysHolds()
    guard = Guard(policy)
    guard.decide(snapshot([IDLE]))
    assert len(policy.seen) == 1
    guard.reset()
    assert not policy.seen


def test_costs_are_forgotten_once_times_prove_to_be_of_other_steps():
    policy, forgotten, changes = AlwaysHolds(), [], 0
    policy.forget_costs = lambda: forgotten.append(len(policy.seen))
    guard = Guard(policy, in_flight=2)
    for _ in range(20):
        for tokens in (500, *[0] * 9):
            back = guard._steps.steps_back
            rows = [running(3, prefill_tokens=tokens), *[running(3)] * 3]
            guard.decide(timed(*rows, seconds=STEP + tokens / 1000))
            changes += guard._steps.steps_back != back
    assert guard._steps.steps_back == 0
    assert len(forgotten) == changes > 0


times = st.sampled_from([0, 1, 40_000, 2_000_000, 10**11])


@st.composite
def any_rows(draw, ranks):
    """Rows that upstream could and could not make: also of a rank that gets nothing."""
    time = draw(times)
    return [
        row._replace(
            waiting=draw(st.integers(0, 3)),
            pending_tokens=row.pending * draw(st.sampled_from([0, 1, 10**6])),
            prefill_tokens=draw(st.sampled_from([0, 0, 1, 10**6])),
            step_time_us=time,
            max_running=draw(st.sampled_from([0, 1, 32])),
            max_tokens=draw(st.sampled_from([1, 8192])),
            pending_age_us=draw(times),
        )
        for row in draw(st.lists(rows(), min_size=ranks, max_size=ranks))
    ]


@settings(max_examples=40)
@given(data=st.data(), ranks=st.integers(1, 4))
def test_no_rows_end_in_an_exception_or_in_what_is_no_number(data, ranks):
    policy = create_policy("adaptive")
    for _ in range(data.draw(st.integers(1, 30))):
        decision = policy.decide(snapshot(data.draw(any_rows(ranks))))
        assert decision.admit or not decision.prefill_budget
        assert 0 <= (decision.prefill_budget or 0) <= 8192
        if policy.learned:
            assert all(map(math.isfinite, policy.learned.cost))
