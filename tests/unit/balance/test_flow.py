"""What is learned about decodes: how many end in a step, and what slows them down."""

import random

import pytest

from vllm_balance.core.policies.flow import Flow

DECODE = 0.04


def observe(
    flow,
    decoding,
    prefilled=0,
    seconds=DECODE,
    decode=DECODE,
    requests=None,
    ended=None,
):
    """A step; all requests decode, and who is missing has ended, if nothing is said."""
    requests = decoding if requests is None else requests
    ended = max(0, flow.decoding - decoding) if ended is None else ended
    return flow.observe(requests, decoding, ended, prefilled, seconds, decode)


def test_requests_that_end_are_counted_in_steps_without_prefill_alone():
    flow = Flow()
    flow = observe(flow, 100)
    flow = observe(flow, 98)
    assert flow.ending == pytest.approx(0.02)
    flow = observe(flow, 150, prefilled=900, seconds=0.5)
    assert flow.ending == pytest.approx(0.02)


def test_the_end_of_a_wave_is_not_taken_for_requests_that_end():
    flow = Flow()
    flow = observe(flow, 100)
    flow = flow.next_wave()
    flow = observe(flow, 10)
    assert flow.ending == 0.0


@pytest.mark.parametrize("unknown", [0, 100])
def test_stretch_is_the_time_that_passes_while_a_request_decodes_for_a_second(unknown):
    """Also of steps before it was known what a decode takes."""
    flow = Flow()
    for step in range(400):
        prefill = step % 2
        known = None if step < unknown else DECODE
        flow = observe(flow, 50, prefill * 900, 0.12 if prefill else DECODE, known)
    assert flow.stretch == pytest.approx(2.0, rel=1e-3)


def test_both_follow_a_traffic_that_changes():
    flow = Flow()
    for share in (0.5, 0.05):
        for _ in range(3000):
            flow = flow.next_wave()
            flow = observe(flow, 100)
            flow = observe(flow, round(100 * (1 - share)))
            flow = observe(flow, 100, 900, DECODE + share)
    assert flow.ending == pytest.approx(0.05, rel=0.05)
    assert flow.stretch == pytest.approx((0.08 + 0.09) / 0.12, rel=0.05)


@pytest.mark.parametrize("closed", [True, False])
def test_in_a_closed_loop_the_number_of_requests_hardly_varies(closed):
    """One comes for each that ends; in an open loop they come at random."""
    draw, flow, requests, told = random.Random(1), Flow(), 40, []
    for _ in range(3000):
        ended = sum(draw.random() < 0.05 for _ in range(requests))
        requests -= ended
        requests += ended if closed else sum(draw.random() < 0.02 for _ in range(100))
        flow = observe(flow, requests, ended=ended)
        told.append(flow.is_closed is closed)
    assert sum(told[300:]) > 0.95 * len(told[300:])
