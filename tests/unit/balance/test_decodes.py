"""What is learned about decodes: how many end in a step, and what slows them down."""

import pytest
from balance.policies.decodes import Decodes


def test_requests_that_end_are_counted_in_steps_without_prefill_alone():
    decodes = Decodes()
    decodes.observe(100, prefilled=0, seconds=0.04, decode=0.04)
    decodes.observe(98, prefilled=0, seconds=0.04, decode=0.04)
    assert decodes.ending == pytest.approx(0.02)
    decodes.observe(150, prefilled=900, seconds=0.5, decode=0.04)
    assert decodes.ending == pytest.approx(0.02), "some joined, so nothing is known"


def test_the_end_of_a_wave_is_not_taken_for_requests_that_end():
    decodes = Decodes()
    decodes.observe(100, prefilled=0, seconds=0.04, decode=0.04)
    decodes.reset()
    decodes.observe(10, prefilled=0, seconds=0.04, decode=0.04)
    assert decodes.ending == 0.0


def test_stretch_is_the_time_that_passes_while_a_request_decodes_for_a_second():
    decodes = Decodes()
    for step in range(400):
        prefill = step % 2
        decodes.observe(50, prefill * 900, 0.12 if prefill else 0.04, decode=0.04)
    assert decodes.stretch == pytest.approx(2.0, rel=1e-3)


def test_both_follow_a_traffic_that_changes():
    decodes = Decodes()
    for share in (0.5, 0.05):
        for _ in range(3000):
            decodes.reset()
            decodes.observe(100, 0, 0.04, 0.04)
            decodes.observe(round(100 * (1 - share)), 0, 0.04, 0.04)
            decodes.observe(100, 900, 0.04 + share, 0.04)
    assert decodes.ending == pytest.approx(0.05, rel=0.05)
    assert decodes.stretch == pytest.approx((0.08 + 0.09) / 0.12, rel=0.05)


def test_short_answers_are_forgotten_once_none_ends_where_many_should():
    """Else a lone request waits long for decodes that do not end."""
    decodes = Decodes()
    for _ in range(300):
        decodes.reset()
        decodes.observe(100, 0, 0.04, 0.04)
        decodes.observe(50, 0, 0.04, 0.04)
    assert decodes.ending == pytest.approx(0.5)
    for _ in range(30):
        decodes.observe(10, 0, 0.04, 0.04)
    assert decodes.ending < 0.05
