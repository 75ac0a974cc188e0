"""What the policy learns about the device."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_balance.core.policies.cost import CostFit, StepCost

shares = st.floats(0, 1)


def steps(cost, count, seed=1, noise=0.0):
    """Step times of a device with that cost: most of them without prefill."""
    rng = random.Random(seed)
    for _ in range(count):
        most = rng.choice([0.0, 0.0, rng.random()])
        mean = most * rng.uniform(0.2, 1.0)
        # The others have less than the fullest, or nothing.
        idle = rng.uniform(0.0, 1.0 - mean / most) if most else 1.0
        seconds = cost.decode
        if most:
            seconds += cost.prefill_seconds(most, mean, idle)
        yield seconds * (1 + noise * rng.uniform(-1, 1)), most, mean, idle


@pytest.mark.parametrize(
    "cost",
    [
        StepCost(decode=0.04, fixed=0.04, own=0.9, shared=0.0),
        StepCost(decode=0.04, fixed=0.0, own=0.3, shared=0.6),
        StepCost(decode=0.01, fixed=0.005, own=0.0, shared=0.2),
        StepCost(decode=0.04, fixed=0.03, own=0.4, shared=0.5, padding=0.5),
    ],
)
def test_finds_the_cost_of_the_device(cost):
    fit = CostFit()
    for step in steps(cost, 3000, noise=0.05):
        fit = fit.observe(*step)
    assert fit.cost.decode == pytest.approx(cost.decode, rel=0.03)
    scale = 0.05 * (cost.own + cost.shared) + 0.05 * cost.decode
    assert fit.cost.own == pytest.approx(cost.own, abs=scale)
    assert fit.cost.shared == pytest.approx(cost.shared, abs=2 * scale)
    assert fit.cost.padding == pytest.approx(cost.padding, abs=2 * scale)
    assert fit.cost.fixed == pytest.approx(cost.fixed, abs=scale)


@pytest.mark.parametrize("first", [0.04, 3.0])
def test_what_was_seen_before_the_first_decode_step_counts(first):
    """That one may be a slow one, which is found once there are others."""
    fit = CostFit()
    for most in (0.5, 0.3, 0.4) * 9:
        fit = fit.observe(0.04 + most, most, mean=most / 2, idle=0.5)
    assert fit.cost is None
    for seconds in (first, 0.04):
        fit = fit.observe(seconds, most=0.0, mean=0.0, idle=1.0)
    assert fit.cost.decode == 0.04
    assert fit.cost.prefill_seconds(0.4, 0.2, 0.5) == pytest.approx(0.4, rel=0.1)


@given(
    st.lists(
        st.tuples(st.floats(1e-6, 1e5), shares, shares, shares), min_size=1, max_size=60
    )
)
def test_costs_are_never_negative_nor_without_bound(observations):
    fit = CostFit()
    fit = fit.observe(0.04, most=0.0, mean=0.0, idle=1.0)
    longest = slowest = 0.04
    for seconds, most, share, idle in observations:
        fit = fit.observe(seconds, most, most * share, (1 - share) * idle)
        decode, fixed, *others = fit.cost
        assert min(decode, fixed, *others) >= 0
        longest, slowest = max(longest, decode), max(slowest, seconds)
        assert fixed <= longest, "a decode step when it was learned"
        assert max(others) <= 10 * 100**0.5 * 30 * slowest


LOADS = [(0.2, 0.2, 0.0), (0.2, 0.2 / 8, 7 / 8)]
"""Equal prompts on all ranks, and one rank that prefills alone."""


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("first", [0.0001, 0.5, 2.0, 60.0])
def test_a_first_decode_that_is_not_like_the_others_is_forgotten(load, first):
    """Compilation, graph capture, garbage collection; or a clock that stumbles."""
    fit, rng = CostFit(), random.Random(5)
    true = StepCost(0.04, 0.03, own=0.9, shared=0.0)
    fit = fit.observe(first, most=0.0, mean=0.0, idle=1.0)
    for step in range(100):
        share = rng.uniform(0.2, 1.5)
        most, mean, idle = load[0] * share, load[1] * share, load[2]
        if step % 2:
            most, mean, idle = 0.0, 0.0, 1.0
        seconds = 0.04 + (true.prefill_seconds(most, mean, idle) if most else 0.0)
        fit = fit.observe(seconds * rng.uniform(0.97, 1.03), most, mean, idle)
    assert fit.cost.decode == pytest.approx(0.04, rel=0.03)
    for name in ("waste", "prefill_seconds"):
        known = getattr(fit.cost, name)(*load)
        assert known == pytest.approx(getattr(true, name)(*load), rel=0.1, abs=0.005)


@pytest.mark.parametrize("outlier", [2.0, 60.0, 1e5])
def test_one_step_in_fifty_that_takes_much_longer_changes_little(outlier):
    fit = CostFit()
    true = StepCost(decode=0.04, fixed=0.02, own=0.9, shared=0.0)
    for number, (seconds, *load) in enumerate(steps(true, 3000)):
        fit = fit.observe(outlier if number % 50 == 0 else seconds, *load)
    assert fit.cost.decode == pytest.approx(0.04, rel=0.01)
    assert fit.cost.own == pytest.approx(0.9, rel=0.1)
    assert fit.resets == 0


@pytest.mark.parametrize("factor", [0.5, 20.0])
def test_costs_that_change_for_good_are_noticed_and_learned_anew(factor):
    fit = CostFit()
    true = StepCost(decode=0.04, fixed=0.02, own=0.9, shared=0.0)
    for step in steps(true, 600):
        fit = fit.observe(*step)
    assert fit.resets == 0
    changed = StepCost(*[part * factor for part in true])
    for step in steps(changed, 150, seed=2):  # about 50 with a prefill
        fit = fit.observe(*step)
    assert fit.resets >= 1
    known = fit.cost.prefill_seconds(0.5, 0.2, 0.2)
    assert known == pytest.approx(changed.prefill_seconds(0.5, 0.2, 0.2), rel=0.2)


def test_waste_is_what_balance_would_save():
    cost = StepCost(decode=0.04, fixed=0.04, own=0.8, shared=0.4)
    assert cost.waste(most=1.0, mean=1.0, idle=0.0) == 0, "full and even"
    even = cost.waste(most=0.5, mean=0.5, idle=0.0)
    assert even == pytest.approx(0.02), "even, but half"
    assert cost.waste(most=1.0, mean=0.25, idle=0.0) == pytest.approx(0.6 + 0.03)
    padded = cost._replace(padding=0.4)
    assert padded.waste(most=0.5, mean=0.5, idle=0.0) == even, "no rank is idle"
    more = padded.waste(1.0, 0.25, idle=0.5) - cost.waste(1.0, 0.25, idle=0.5)
    assert more == pytest.approx(0.2)


@given(most=shares, share=shares, idle=shares)
def test_waste_is_never_negative(most, share, idle):
    cost = StepCost(decode=0.04, fixed=0.04, own=0.8, shared=0.4, padding=0.4)
    assert cost.waste(most, most * share, (1 - share) * idle) >= 0


@pytest.mark.parametrize("padded", [0, 1])
def test_waste_of_a_rank_alone_is_known_before_padding_is(padded):
    """Single ranks of eight prefill, and four now and then; half of a prompt's cost is
    shared. A padded row and one of the rank's own cost the others the same then."""
    fit, rng = CostFit(), random.Random(3)
    true = StepCost(0.04, 0.03, own=0.5, shared=0.5, padding=0.5 * padded)
    for step in range(2000):
        ranks = 0 if step % 3 else 4 if step % 21 == 0 else 1
        most = rng.uniform(0.05, 0.3) if ranks else 0.0
        load = (most, most * ranks / 8, 1 - ranks / 8)
        seconds = 0.04 + (true.prefill_seconds(*load) if ranks else 0.0)
        fit = fit.observe(seconds, *load)
    load = (0.2, 0.2 / 8, 7 / 8)
    assert fit.cost.waste(*load) == pytest.approx(true.waste(*load), rel=0.15)


@pytest.mark.parametrize("seed", [40, 79, 367])
def test_does_not_diverge_where_attention_makes_times_nonlinear(seed):
    """Nearly all of 16 ranks prefill alike and share nothing. With each bound applied
    to its state alone, errors of both signs drove `own` up to 792 s, instead of 3.6."""
    rng = random.Random(seed)
    fit = CostFit()
    fit = fit.observe(0.04, most=0.0, mean=0.0, idle=1.0)
    largest = 0.0
    for _ in range(3000):
        most = rng.uniform(0.8, 1.0)
        ranks = [most] + [most if rng.random() < 0.9 else 0.0 for _ in range(15)]
        seconds = 0.9 * most * (1 + 3 * rng.random() * most)
        fit = fit.observe(0.04 + seconds, most, sum(ranks) / 16, ranks.count(0.0) / 16)
        largest = max(largest, fit.cost.own)
    assert largest < 3.6
    # Equal prompts cannot tell `own` from `shared` and `padding` together.
    usual = 0.9 * 0.9 * (1 + 1.5 * 0.9)
    assert fit.cost.prefill_seconds(0.9, 0.8, 0.1) == pytest.approx(usual, rel=0.15)


@pytest.mark.parametrize("attention", [0.0, 0.1, 0.7])
def test_finds_what_attention_costs(attention):
    """Each of four ranks computes a chunk somewhere in a long prompt."""
    fit, rng = CostFit(), random.Random(7)
    for _ in range(1000):
        fit = fit.observe(0.04, 0.0, 0.0, 1.0)
        tokens = [rng.uniform(0.1, 1.0) for _ in range(4)]
        attended = [n * rng.uniform(0, 12) for n in tokens]
        cost = [0.7 * n + attention * a for n, a in zip(tokens, attended, strict=True)]
        fullest = cost.index(max(cost))
        load = tokens[fullest], sum(tokens) / 4, 0.0, attended[fullest]
        seconds = 0.04 + cost[fullest] + 0.3 * load[1]
        fit = fit.observe(seconds * rng.uniform(0.95, 1.05), *load)
    assert fit.cost.attention == pytest.approx(attention, rel=0.1)
    known = fit.cost.per_attended(8192)
    assert known == pytest.approx(attention / 0.7 / 8192, rel=0.35)


def deep(fit, own, attention, depths, count):
    """With steps of four ranks with alike chunks, each somewhere in a long prompt."""
    rng = random.Random(7)
    for _ in range(count):
        most = rng.uniform(0.1, 1.0)
        attended = most * rng.uniform(*depths)
        fit = fit.observe(0.04, 0.0, 0.0, 1.0)
        seconds = 0.04 + own * most + attention * attended
        fit = fit.observe(seconds, most, most, 0.0, attended)
    return fit


def test_deeper_chunks_are_no_surprise_once_attention_is_known():
    fit = deep(CostFit(), own=0.7, attention=0.7, depths=(0, 4), count=400)
    assert fit.attends
    fit = deep(fit, own=0.7, attention=0.7, depths=(20, 24), count=60)
    assert fit.resets == 0


def test_attention_counts_only_beside_a_cost_of_the_tokens_themselves():
    """It is a price in tokens, and what costs nothing is no measure."""
    fit = deep(CostFit(), own=0.0, attention=0.7, depths=(0, 12), count=400)
    assert not fit.attends
    assert fit.cost.attention == 0


def test_short_prompts_cost_no_attention_whatever_the_noise():
    """All begin anew, so that what they attend to follows from their lengths."""
    fit, rng = CostFit(), random.Random(2)
    for _ in range(2000):
        most = rng.uniform(0.01, 0.3)
        seconds = (0.04 + 0.9 * most) * rng.uniform(0.8, 1.2)
        fit = fit.observe(seconds, most, most / 2, 0.0, most * most / 2)
        fit = fit.observe(0.04, 0.0, 0.0, 1.0)
        assert fit.cost.attention == 0


def test_ranks_that_always_prefill_alike_are_taken_to_share_little():
    """Else noise would say what each has for itself: up to 0.4 of 0.9 were shared."""
    for seed in range(5):
        fit, rng = CostFit(), random.Random(seed)
        for step in range(300):
            fit = fit.observe(0.04, 0.0, 0.0, 1.0)
            most = rng.uniform(0.5, 1.0)
            seconds = (0.04 + 0.9 * most) * rng.uniform(0.85, 1.15)
            fit = fit.observe(seconds, most, most * rng.uniform(0.9, 1.0), 0.0)
            assert fit.cost.shared < 0.1 or step < 50
