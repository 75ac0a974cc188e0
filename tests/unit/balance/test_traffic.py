"""The renewal cycle and the traffic that it is computed from."""

import math

import pytest
from balance.policies.traffic import Traffic, optimal_cycle
from hypothesis import given
from hypothesis import strategies as st

positive = st.floats(1e-3, 1e3)


def loss(cycle, waste, requests, rate):
    """Seconds lost per second by waste and by waiting."""
    return waste / cycle + rate * cycle / (2 * requests)


@given(waste=positive, requests=positive, rate=positive, factor=st.floats(0.1, 10))
def test_no_cycle_loses_less_than_the_optimal_one(waste, requests, rate, factor):
    cycle = optimal_cycle(waste, requests, rate)
    best = loss(cycle, waste, requests, rate)
    assert best <= loss(cycle * factor, waste, requests, rate) * (1 + 1e-9)


def test_a_free_release_needs_no_cycle_and_without_arrivals_it_never_ends():
    assert optimal_cycle(waste=0.0, requests=5, rate=1.0) == 0
    assert optimal_cycle(waste=1.0, requests=5, rate=0.0) == math.inf


def test_traffic_is_measured_in_requests_per_second():
    traffic = Traffic(window=30)
    assert (traffic.rate, traffic.size) == (0.0, 1.0)
    for _ in range(1000):  # 200 prompt tokens every 0.1 s, 500 per request
        traffic.observe(0.1, prefilled=200, pending=2, pending_tokens=1000)
    assert traffic.size == pytest.approx(500)
    assert traffic.rate == pytest.approx(4.0)


def test_traffic_follows_within_its_window():
    traffic = Traffic(window=10)
    for prefilled in (400, 0):
        for _ in range(1000):
            traffic.observe(0.1, prefilled, pending=1, pending_tokens=100)
    assert traffic.rate < 0.01
