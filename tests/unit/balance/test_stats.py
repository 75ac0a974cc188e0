"""Statistics cost what they report, not how long ago the last report was."""

import json

import pytest
from balance.policies.decision import OPEN, Learned
from balance.policies.rows import Row, Snapshot
from balance.policies.step_cost import StepCost
from balance.stats import HISTOGRAMS, BalanceStats

ROW = Row(*[1] * len(Row._fields))
LOAD = {"unprefilled": 5, "context": 7, "held": 1}
COST = StepCost(decode=0.04, fixed=0.01, own=0.9, shared=0.2, padding=0.1)


def observe(stats, steps):
    for number in range(steps):
        row = ROW._replace(prefill_tokens=number % 7, max_tokens=number % 5 * 100)
        snapshot = Snapshot.from_rows([ROW, row])
        budget = None if number % 3 else number
        stats.observe_step(
            OPEN._replace(prefill_budget=budget), snapshot, number % 11 / 1000
        )
        stats.observe_held_step()


def test_counts_and_sums_are_exact():
    stats = BalanceStats("cap")
    observe(stats, 1000)
    report = stats.take(LOAD)
    assert sum(count for _, count, _ in report["exchange_seconds"]) == 1000
    total = sum(total for _, _, total in report["exchange_seconds"])
    assert total == pytest.approx(sum(number % 11 for number in range(1000)) / 1000)
    assert report["held_steps"] == 1000
    assert report["load"] == LOAD
    again = stats.take(LOAD)
    assert not again["decisions"]
    assert again["held_steps"] == 0


def test_a_value_goes_into_the_bin_that_prometheus_has_for_it():
    """Bounds are inclusive, and above the last one there is one more bin."""
    stats, snapshot = BalanceStats("cap"), Snapshot.from_rows([ROW])
    bounds = HISTOGRAMS["exchange_seconds"]
    for seconds in (bounds[0], bounds[1], bounds[-1] + 1):
        stats.observe_step(OPEN, snapshot, seconds)
    found = [index for index, *_ in stats.take(LOAD)["exchange_seconds"]]
    assert found == [0, 1, len(bounds)]


def test_what_was_learned_is_told_as_it_is_and_set_backs_once():
    stats, snapshot = BalanceStats("adaptive"), Snapshot.from_rows([ROW])
    told = []
    for set_backs in (0, 2, 2, 1):  # the last one is of a new group of ranks
        stats.observe_step(OPEN, snapshot, 0.001)
        stats.observe_learned(Learned(COST, set_backs))
        report = json.loads(json.dumps(stats.take(LOAD)))
        assert report["step_cost"] == COST._asdict()
        told.append(report["set_backs"])
    assert told == [0, 2, 0, 0]
