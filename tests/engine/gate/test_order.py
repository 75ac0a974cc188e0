"""Short prompts pass long ones in the real scheduler, and what that leaves alone."""

import pytest
from vllm.v1.request import RequestStatus

from schedulers import make_request, make_scheduler, measure, rank_config, step
from vllm_balance.core.policies import OPEN, Decision

HOLD = Decision(admit=False, prefill_budget=0, reason="waiting_cost")
SLOTS = 4


@pytest.fixture
def scheduler(moe_model):
    return make_scheduler(rank_config(moe_model, "adaptive"))


def waiting(scheduler):
    return [request.request_id for request in scheduler.waiting]


def blocked_queue(scheduler):
    """Of those that wait for something else, by its name in this release."""
    queues = ("skipped_waiting", "kv_holding_waiting")
    return next(getattr(scheduler, name) for name in queues if hasattr(scheduler, name))


def held_step(scheduler, number, **prompts):
    """A step that holds, before which these requests have come; its row."""
    for name, tokens in prompts.items():
        scheduler.add_request(make_request(name, tokens, 5))
    scheduler.balance_gate.apply(HOLD)
    step(scheduler)
    return measure(scheduler.balance_gate, 0, number, now=float(number))


@pytest.mark.parametrize(
    ("policy", "scheduling", "first"),
    [
        ("adaptive", "fcfs", "short"),
        ("align", "fcfs", "long"),
        ("cap", "fcfs", "long"),
        ("adaptive", "priority", "long"),
    ],
)
def test_who_is_first(moe_model, policy, scheduling, first):
    config = rank_config(moe_model, policy, scheduling_policy=scheduling)
    scheduler = make_scheduler(config)
    held_step(scheduler, 1, long=60, short=10)
    held_step(scheduler, 2)
    held_step(scheduler, 3)
    scheduler.balance_gate.apply(OPEN._replace(prefill_budget=10))
    assert step(scheduler).num_scheduled_tokens == {first: 10}


def test_a_request_with_a_slot_keeps_it_and_its_age_and_the_others_their_places(
    scheduler,
):
    """Else a bound of the hold would begin anew with each short prompt that comes."""
    long, others = [f"long-{n}" for n in range(SLOTS)], []
    held_step(scheduler, 1, **dict.fromkeys(long, 90))
    for number, tokens in enumerate([60, 10, 30] * 3, 2):
        others.append(f"other-{number}")
        row = held_step(scheduler, number, **{others[-1]: tokens})
        assert row.pending == SLOTS
        assert row.pending_age_us == (number - 1) * 1_000_000
        assert sorted(waiting(scheduler)[:SLOTS]) == long
        assert waiting(scheduler)[SLOTS:] == others
    assert scheduler.balance_gate.take_stats()["held_requests"] == SLOTS


def test_a_preempted_request_stays_first_and_other_queues_are_left_alone(scheduler):
    held_step(scheduler, 1, again=90, long=100, short=10)
    scheduler.waiting[0].status = RequestStatus.PREEMPTED
    blocked = [make_request(name, size, 5) for name, size in (("b", 90), ("a", 5))]
    for request in blocked:
        request.status = RequestStatus.WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR
        scheduler.requests[request.request_id] = request
        blocked_queue(scheduler).add_request(request)
    measure(scheduler.balance_gate, 0, 2, now=2.0)
    assert waiting(scheduler) == ["again", "short", "long"]
    assert list(blocked_queue(scheduler)) == blocked
