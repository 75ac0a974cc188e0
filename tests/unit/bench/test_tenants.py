"""Nobody pays for a stranger's requests: two tenants, judged one by one.

`python bench/worlds/tenants.py` judges more worlds, and prints who pays.
"""

from statistics import fmean

import pytest

from tenants import TINY, TenantTimes, judge, serve, who_pays

FAST, ALL = range(100, 104), range(2000, 2300)


def test_many_tiny_requests_hold_no_prompt_of_others():
    """By at most 11 % of the others' mean; 9.7 if no cheap prompt went at once."""
    offs = [serve(TINY, "off", seed) for seed in range(16)]
    adaptives = [serve(TINY, "adaptive", seed) for seed in range(16)]
    off, adaptive = (
        fmean(each["others"].median for each in x) for x in (offs, adaptives)
    )
    assert adaptive <= 2 * off + 0.5
    for who, more in (("others", 1.11), ("all", 1.01)):
        means = [fmean(each[who].mean for each in runs) for runs in (offs, adaptives)]
        assert means[1] <= more * means[0]


@pytest.mark.parametrize("seed", FAST)
def test_others_do_not_pay_for_a_random_tenant(seed):
    assert "others" not in judge(seed)


@pytest.mark.slow
def test_who_pays_in_many_worlds():
    """As docs/balance.md tells: the goal of one in a hundred is missed.

    A tenant whose answers are a token or two gains nothing from any hold.
    """
    paid = [who for seed in ALL for who in judge(seed)]
    assert paid.count("others") <= 0.05 * len(ALL)
    assert paid.count("tenant") <= 0.2 * len(ALL)


def test_who_pays_is_told():
    off = {"others": TenantTimes(10, 1, 2, 9), "tenant": TenantTimes(5, 1, 2, 9)}
    slower = {"others": TenantTimes(11.5, 1, 2, 9), "tenant": TenantTimes(5, 1, 6.5, 9)}
    assert who_pays(off, off) == []
    assert who_pays(off, slower) == ["others", "tenant"]
