"""Hosts that serve one model together, in every way of balancing the load over them.

The tests of a group run in this order, on the same processes; the last two end them.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from deployment import RANKS, TIMEOUT_S, Group
from hugging_face import Sample
from test_greedy_equality import assert_equal
from traffic import Traffic

END_S = 60
"""Within this time the ranks are named, clients have errors, and processes end."""


def assert_serves(group: Group, samples: list[Sample]) -> None:
    """Every server writes what Hugging Face writes, and every rank takes part."""
    with ThreadPoolExecutor() as pool:
        each = 4 * group.ranks // len(group.servers)
        list(pool.map(lambda s: assert_equal(s, samples, each), group.servers))
    decisions: dict[int, float] = {}
    served: dict[int, float] = {}
    held = 0.0
    for server in group.servers:
        names = ("decisions_total", "held_steps_total", "exchange_seconds_count")
        ours, steps, exchanges = server.metrics(
            *(f"vllm:dp_balance_{n}" for n in names)
        )
        assert exchanges == ours
        decisions |= ours
        held += sum(steps.values())
        served |= server.metric("vllm:request_success_total")
    assert sorted(decisions) == sorted(served) == list(range(group.ranks))
    assert min(served.values()) > 0
    assert min(decisions.values()) > 0
    assert held > 0


def test_all_ranks_serve_and_are_held(group: Group, moe_samples: list[Sample]) -> None:
    assert_serves(group, moe_samples)


def test_a_slow_and_lossy_link_delays_and_nothing_else(
    group: Group, moe_samples: list[Sample]
) -> None:
    with Traffic(group.servers, moe_samples, group.ranks) as traffic:
        traffic.more(20, timeout=END_S)
        group.hosts[1].slow()
        traffic.more(20, timeout=END_S)
        assert group.hosts[1].normal() > 0, "the link has lost no packet"
        traffic.more(20, timeout=END_S)


def test_a_cable_that_is_soon_back_delays_and_nothing_else(
    group: Group, moe_samples: list[Sample]
) -> None:
    with Traffic(group.servers[:1], moe_samples, group.ranks) as traffic:
        traffic.more(20, timeout=END_S)
        group.hosts[1].cut()
        time.sleep(TIMEOUT_S / 5)
        group.hosts[1].join()
        traffic.more(20, timeout=END_S)


def test_a_host_that_is_cut_off_is_named_and_all_end(
    group: Group, moe_samples: list[Sample]
) -> None:
    first, second, *others = group.hosts
    with Traffic(group.servers[:1], moe_samples, group.ranks) as traffic:
        traffic.more(20, timeout=END_S)
        second.cut()
        traffic.refused(timeout=END_S)
    group.wait(END_S)
    for host in (first, *others):
        named = f"no answer from ranks {RANKS}, {RANKS + 1} (process ended or stopped)"
        assert named in group.log(host)
    assert "no answer from rank 0 (process ended or stopped)" in group.log(second)
    second.join()


def test_the_group_starts_again(
    group: Group, moe_samples: list[Sample], request: pytest.FixtureRequest
) -> None:
    if group.mode != "internal" and not request.config.getoption("every"):
        pytest.skip("only with --every")
    group.start()
    assert_serves(group, moe_samples)
