"""Hosts that serve one model together, in every way of balancing the load over them.

The tests of a group run in this order, on the same processes; the last one ends them.
What they print is measured, and in docs/deployment.md.
"""

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from deployment import RANKS, TIMEOUT_S
from hugging_face import Sample
from test_greedy_equality import assert_equal
from test_policy_route import policy
from traffic import Traffic
from vllm_server import START_S, Server

END_S = 120
"""Within this time the ranks are named, clients have errors, and processes end."""

ANSWERS = 20
COUNTED = (
    "vllm:dp_balance_decisions_total",
    "vllm:dp_balance_held_steps_total",
    "vllm:dp_balance_exchange_seconds_count",
)


def assert_serves(servers: list[Server], ranks: int, samples: list[Sample]) -> None:
    """Every server writes what Hugging Face writes, and every rank takes part."""
    with ThreadPoolExecutor() as pool:
        each = 4 * ranks // len(servers)
        list(pool.map(lambda s: assert_equal(s, samples, each), servers))
    decisions: dict[int, float] = {}
    served: dict[int, float] = {}
    held = 0.0
    for server in servers:
        ours, steps, exchanges = server.settled_metrics(*COUNTED)
        assert exchanges == ours
        decisions |= ours
        held += sum(steps.values())
        served |= server.metric("vllm:request_success_total")
    assert sorted(decisions) == sorted(served) == list(range(ranks))
    assert min(served.values()) > 0
    assert min(decisions.values()) > 0
    assert held > 0


def test_all_ranks_serve_and_are_held(group, moe_samples):
    assert_serves(group.servers, group.ranks, moe_samples)


def test_one_command_switches_the_ranks_of_all_hosts(group, moe_samples):
    """Whichever server is asked, also where it reaches its own ranks alone."""
    with Traffic(group.servers, moe_samples, group.ranks) as traffic:
        for name in ("off", "adaptive", "align", "cap"):
            server = group.servers[len(name) % len(group.servers)]
            status, said = policy(server.url, name)
            assert (status, said.partition(" (")[0]) == (0, name)
            traffic.more(ANSWERS, timeout=END_S)
            assert [policy(each.url) for each in group.servers] == [(0, name)] * len(
                group.servers
            )
    for host in group.hosts:
        assert group.log(host).count("policy off instead of cap, from step") == RANKS


def test_a_slow_and_lossy_link_delays_and_nothing_else(group, moe_samples):
    with Traffic(group.servers, moe_samples, group.ranks) as traffic:
        before = traffic.more(ANSWERS, timeout=END_S)
        group.hosts[1].slow()
        slow = traffic.more(ANSWERS, timeout=END_S)
        lost = group.hosts[1].normal()
        after = traffic.more(ANSWERS, timeout=END_S)
    print(f"{ANSWERS} answers: {before:.1f} s, slow {slow:.1f} s, then {after:.1f} s")
    assert lost > 0, "the link has lost no packet"


def test_a_cable_that_is_soon_back_delays_and_nothing_else(group, moe_samples):
    with Traffic(group.servers[:1], moe_samples, group.ranks) as traffic:
        traffic.more(ANSWERS, timeout=END_S)
        group.hosts[1].cut()
        time.sleep(TIMEOUT_S / 5)
        group.hosts[1].join()
        first = traffic.more(1, timeout=END_S)
        traffic.more(ANSWERS, timeout=END_S)
    print(f"out for {TIMEOUT_S / 5:.1f} s, the next answer {first:.1f} s later")


@pytest.mark.parametrize(
    ("number", "asked"), [(1, True), (1, False), (0, True)], ids=str
)
def test_a_host_that_restarts_brings_the_group_back(
    group, number, asked, moe_samples, request
):
    """Nobody does anything but what restarts the processes of each host.

    If nobody asks when it restarts, those who ask next are told.
    """
    everything = request.config.getoption("every")
    if (group.mode, number, asked) != ("internal", 1, True) and not everything:
        pytest.skip("only with --every")
    with group.supervised():
        if not asked:
            group.kill(group.hosts[number])
        with Traffic(group.servers[:1], moe_samples, group.ranks) as traffic:
            if asked:
                traffic.more(ANSWERS, timeout=END_S)
                group.kill(group.hosts[number])
            start = time.monotonic()
            errors = traffic.refused(timeout=END_S)
            refused = time.monotonic() - start
        group.wait_until_healthy(START_S)
        back = time.monotonic() - start
        assert_serves(group.servers, group.ranks, moe_samples)
    print(f"errors within {refused:.1f} s, serves again after {back:.1f} s; {errors}")


def test_a_host_that_is_cut_off_is_named_and_all_end(group, moe_samples):
    first, second, *others = group.hosts
    with Traffic(group.servers[:1], moe_samples, group.ranks) as traffic:
        traffic.more(ANSWERS, timeout=END_S)
        start = time.monotonic()
        second.cut()
        errors = traffic.refused(timeout=END_S)
        refused = time.monotonic() - start
    group.wait(END_S)
    ended = time.monotonic() - start
    for host in (first, *others):
        named = f"no answer from ranks {RANKS}, {RANKS + 1} (process ended or stopped)"
        assert named in group.log(host)
    # Cut off from the store of rank 0, the second hears of no other rank.
    assert "no answer from rank 0 (process ended or stopped)" in group.log(second)
    print(f"errors within {refused:.1f} s, all ended after {ended:.1f} s; {errors}")
