"""What a rank reports: each thing once, and no more than fits into a message."""

import json

from vllm.v1.core.sched.balance.rank.metrics import BalanceStats

from vllm_balance.core.policies.cost import StepCost
from vllm_balance.core.policies.decision import OPEN, Learned
from vllm_balance.core.policies.rows import Limits, Row, Snapshot

ROWS = Snapshot.from_rows([Row(*[1] * len(Row._fields))] * 2, [Limits(4, 64)] * 2)
LOAD = {"unprefilled_tokens": 5, "context_tokens": 7, "held_requests": 1}
COST = StepCost(decode=0.04, fixed=0.01, own=0.9, shared=0.2, padding=0.1)


def test_a_report_has_what_came_since_the_last_one_and_the_latest_values():
    stats = BalanceStats("cap")
    for number in range(3000):
        stats.observe_step(OPEN, ROWS, number / 1000)
        stats.observe_held_step()
    report = json.loads(json.dumps(stats.take(LOAD)))
    assert report["decisions"] == [["cap", "admit", "open", 3000]]
    assert report["held_steps"] == 3000
    assert report["held_requests"] == 1
    assert report["ratio"] == [1.0] * 1000
    assert report["exchange_seconds"] == [n / 1000 for n in range(2000, 3000)]
    again = stats.take(LOAD)
    assert not again["decisions"] + again["exchange_seconds"]
    assert again["held_steps"] == 0


def test_what_was_learned_is_told_as_long_as_its_policy_decides():
    """A gauge that is not told again keeps its value."""
    stats, nothing = BalanceStats("adaptive"), dict.fromkeys(COST._fields, 0)
    for policy, learned, told in (
        ("adaptive", Learned(COST, 0), COST._asdict()),
        ("off", None, nothing),
        ("adaptive", Learned(COST, 0), COST._asdict()),
    ):
        stats.set_policy(policy)
        stats.observe_step(OPEN, ROWS, 0.001, learned)
        for _ in range(2):
            assert dict(stats.take(LOAD)["step_cost_seconds"]) == told


def test_the_first_rank_warns_when_a_policy_gives_way(monkeypatch):
    said = []
    warn = "vllm.v1.core.sched.balance.rank.metrics.logger.warning_once"
    monkeypatch.setattr(warn, lambda *words: said.append(words))
    first, second = BalanceStats("adaptive"), BalanceStats("adaptive", rank=1)
    for reason in ("hold_bound", "losing", "open"):
        for stats in (first, second):
            stats.observe_step(OPEN._replace(reason=reason), ROWS, 0.001)
    assert [what.split()[0] for _, _, what in said] == ["has", "held"]
