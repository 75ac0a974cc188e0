"""What a row says in comparison with the last one; both gates make theirs here."""

from vllm_balance.core.measure import RowMaker
from vllm_balance.core.pending import Pending
from vllm_balance.core.policies.rows import Row

NOBODY = Pending({}, 0)


def row(rows, now, pending=NOBODY, **fields):
    counts = {"wave": 0, "step": 1, "queues": (5, 3, 2), "ended": 0}
    return rows.row(now=now, pending=pending, **counts | fields)


def test_a_row_says_what_was_counted():
    rows = RowMaker()
    rows.end_step(1.0, prefilled=70, attended=900)
    rows.end_step(1.25, prefilled=80, attended=1000)
    pending = Pending({"a": 30, "b": 12}, 500)
    found = row(rows, 1.25, pending, wave=3, step=4, ended=1, ticket=9)
    queues, work, ages = (5, 3, 1, 2), (2, 42, 80, 250_000), (0, 500, 1000, 9, 0)
    assert found == Row(3, 4, *queues, *work, *ages)


def test_the_oldest_request_counts_whose_first_token_is_not_late_yet():
    arrivals = [100.0, 102.5, 103.5]
    pending = Pending({"late": 5, "in time": 5, "new": 5}, 0, arrivals)
    for ttft, clock, age in ((3, 104, 1.5), (9, 104, 4), (1, 110, 0), (3, 90, 0)):
        found = row(RowMaker(ttft), 7.0, pending, clock=float(clock))
        assert found.in_time_age_us == age * 1e6
    assert row(RowMaker(), 7.0, pending, clock=104.0).in_time_age_us == 0, "no limit"


def test_seconds_held_are_those_before_the_step_that_completed_a_prompt():
    rows, both = RowMaker(), Pending({"a": 5, "b": 5}, 0)
    for now, pending, held in (
        (1.0, both, []),
        (2.0, both, []),
        (4.0, Pending({"b": 5}, 0), [1.0]),
        (4.5, NOBODY, [3.0]),
        (5.0, NOBODY, []),
    ):
        rows.end_step(now, 0, 0)
        row(rows, now, pending)
        assert [*rows.held] == held


def test_a_step_begins_when_the_exchange_before_it_ends():
    rows, found = RowMaker(), []
    for now in (1.0, 2.0, 3.0):
        rows.end_step(now, 0, 0)
        found.append(row(rows, now).step_time_us)
        rows.end_exchange(now + 0.75)
    rows.forget_steps()
    rows.end_step(9.0, 0, 0)
    assert [*found, row(rows, 9.0).step_time_us] == [0, 250_000, 250_000, 0]


def test_a_decode_that_is_gone_has_ended():
    rows = RowMaker()
    assert rows.count_ended(["a", "b", "c"], {"a", "b", "c"}) == 0
    assert rows.count_ended(["a"], {"a", "b"}) == 1, "b was preempted"
    assert rows.count_ended([], {}) == 1
    rows.count_ended(["a"], {"a"})
    rows.reset()
    assert rows.count_ended([], {}) == 0


def test_pending_requests_grow_older_until_the_end_of_the_wave():
    rows, first = RowMaker(), Pending({"a": 5}, 0)
    ages = [row(rows, now, first).pending_age_us for now in (1.0, 2.0)]
    both = Pending({"a": 5, "b": 7}, 0)
    ages.append(row(rows, 4.0, both).pending_age_us)
    ages.append(row(rows, 5.0, Pending({"b": 7}, 0)).pending_age_us)
    assert ages == [0, 1_000_000, 3_000_000, 1_000_000]
    rows.reset()
    assert row(rows, 600.0, both).pending_age_us == 0


def test_other_pending_requests_are_to_be_put_in_order():
    rows = RowMaker()
    for pending, is_sorted in (
        (Pending({"a": 5}, 0), False),
        (Pending({"a": 3}, 0), True),
        (Pending({"b": 3}, 0), False),
        (NOBODY, False),
    ):
        rows.is_sorted = True
        row(rows, 1.0, pending)
        assert rows.is_sorted is is_sorted
        assert rows.pending == pending.tokens
