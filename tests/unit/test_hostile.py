"""Whatever the device and the requests do, no policy is much worse than off.

`judge` says what harm is. `python tests/unit/helpers/hostile.py` judges more worlds.
"""

import pytest
from vllm.benchmarks.dp_balance.policies import OWN
from vllm.v1.core.sched.balance.policies.adaptive import Adaptive
from vllm.v1.core.sched.balance.policies.cap import Cap
from vllm.v1.core.sched.balance.policies.decision import Decision
from vllm.v1.core.sched.balance.policies.step_cost import StepCost

from hostile import COSTS, Figures, Step, draw, harms, judge, parse, wrong_costs

FAST, ALL = range(24), range(2000)
HARMED = pytest.mark.xfail(strict=True, reason="the policy harms here")
KEPT = [
    "2:night+modes",
    "1:pauses",
    *(
        pytest.param(name, marks=HARMED)
        for name in [
            "0:review",  # quiet with slow decodes, then many requests
            "2:first_decode+equal",
            "1:first_decode+pinned",  # one rank prefills alone
            "1:lone",
            "2:lone",
        ]
    ),
]
"""Worlds in which a policy once did harm, or might."""


@pytest.mark.parametrize("name", KEPT)
def test_worlds_that_were_named(name: str) -> None:
    assert judge(parse(name), "adaptive").harm == ""


@pytest.mark.parametrize("seed", FAST)
def test_random_worlds(seed: int) -> None:
    assert judge(draw(seed), "adaptive").harm == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", ALL[len(FAST) :])
def test_many_random_worlds(seed: int) -> None:
    assert judge(draw(seed), "adaptive").harm == ""


@pytest.mark.parametrize("policy", set(OWN) - {"off", "adaptive"})
@pytest.mark.parametrize("seed", FAST[:6])
def test_other_policies_agree_and_end(policy: str, seed: int) -> None:
    assert judge(draw(seed), policy).harm == ""


def test_a_world_is_that_of_its_name() -> None:
    world = draw(3)
    again = parse(world.name)
    assert (again.cost, again.limits) == (world.cost, world.limits)
    lengths = [
        [(r.due, r.prompt_len, r.output_len) for r in each.requests()]
        for each in (world, again)
    ]
    assert lengths[0] == lengths[1]


def test_a_policy_that_holds_is_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    hold = Decision(admit=False, prefill_budget=0, reason="never")
    monkeypatch.setattr(Adaptive, "decide", lambda self, snapshot: hold)
    assert "mean" in judge(parse("1:"), "adaptive").harm


def test_copies_that_disagree_are_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        Cap, "decide", lambda self, snapshot: Decision(True, None, str(id(self)))
    )
    assert "copies disagree" in judge(parse("1:"), "cap").harm


def test_wrong_costs_are_harm() -> None:
    steps = [Step([100, 0], 0.04, 0.1), Step([0, 0], 0.04, 0.0)] * 30
    right = StepCost(0.04, 0.0, own=0.1, shared=0.0)
    assert wrong_costs(right, steps, 100) == ""
    off = 2 * COSTS
    assert "decode" in wrong_costs(right._replace(decode=0.04 * off), steps, 100)
    assert "prefill" in wrong_costs(right._replace(own=0.1 * off), steps, 100)
    assert wrong_costs(right._replace(own=9.0), steps[:30], 100) == ""  # too early


def test_a_difference_within_the_noise_is_no_harm() -> None:
    off = [Figures(mean, 1.0, 9.0, "") for mean in (10.0, 11.0, 12.0)]
    worse = [Figures(mean, 1.0, 9.0, "") for mean in (10.4, 11.0, 13.0)]
    much_worse = [each._replace(mean=each.mean * 1.5, tail=9.0) for each in off]
    assert harms(off, worse) == []
    assert harms(off, much_worse) == ["mean", "tail"]
