"""Which of the steps in flight a time is of."""

import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from snapshots import IDLE, snapshot

from vllm_balance.core.policies.in_flight import StepsInFlight

RANKS = 4


def seconds_of(loads):
    """40 ms, and a second for a thousand tokens of the fullest rank."""
    return 0.04 + max(loads) / 1000


def loads_of(rng):
    """Few ranks prefill, in a third of the steps."""
    busy = rng.random() < 1 / 3
    return [busy * rng.choice([0, 0, rng.randint(1, 1000)]) for _ in range(RANKS)]


def show(steps, loads, seconds):
    rows = [
        IDLE._replace(
            prefill_tokens=tokens,
            prefill_attended=7 * tokens,
            step_time_us=int(seconds * 1e6),
        )
        for tokens in loads
    ]
    return steps.timed(snapshot(rows))


def serve(steps, back, count, seed=0, disturbed=lambda seconds, step: seconds):
    """Shows steps whose time is of the one that was scheduled `back` before."""
    rng, loads = random.Random(seed), []
    timed = []
    for step in range(count):
        loads.append(loads_of(rng))
        older = loads[max(0, step - int(back))]
        oldest = loads[max(0, step - int(back + 0.5))]
        seconds = (seconds_of(older) + seconds_of(oldest)) / 2
        timed.append(show(steps, loads[-1], disturbed(seconds, step)))
    return timed, loads


@pytest.mark.parametrize(
    ("in_flight", "back"),
    [(2, 0), (2, 0.5), (2, 1), *((4, half / 2) for half in range(7))],
)
def test_the_steps_that_explain_the_times_are_found(in_flight, back):
    steps = StepsInFlight(in_flight)
    assert steps.steps_back == in_flight - 1, "an engine waits for the oldest one"
    timed, loads = serve(steps, back, 400)
    assert steps.steps_back == back
    assert steps.spans == 1 + (back % 1 > 0)
    if steps.spans == 1:
        assert timed[-1].prefill_tokens == tuple(loads[-1 - int(back)])
        attended = [7 * tokens for tokens in loads[-1 - int(back)]]
        assert timed[-1].prefill_attended == tuple(attended)


def rounds_until_found(pause):
    """Of a prefill and nine decodes; so many decodes pass between two rounds."""
    steps = StepsInFlight(2)
    for number in range(20):
        for loads in ([500, 0, 0, 0], *[[0] * RANKS] * 9):
            show(steps, loads, seconds_of(loads))
        if steps.steps_back == 0:
            return number
        for _ in range(pause):
            show(steps, [0] * RANKS, 0.04)
    raise AssertionError


def test_decodes_alone_are_not_seen_but_for_the_first():
    """Else what is known of prompts fades while none come."""
    assert rounds_until_found(pause=0) == rounds_until_found(pause=1000) == 4


@pytest.mark.parametrize("seed", range(10))
def test_what_explains_less_than_a_third_of_the_errors_is_chance(seed):
    """Prompts double the time of the newest step, and noise makes more."""
    rng = random.Random(seed)

    def disturbed(seconds, step):
        return (0.09 if seconds > 0.04 else 0.04) * math.exp(rng.gauss(0, 1))

    steps = StepsInFlight(2)
    serve(steps, 0, 400, seed, disturbed)
    assert steps.steps_back == 1


@pytest.mark.parametrize(
    "times",
    [[(0, 0.2), (0, 0.2), (600, 0.04)], [(600, 0.64), (0, 0.0)]],
    ids=["prompts make no step shorter", "a step without a time"],
)
def test_what_tells_nothing(times):
    steps = StepsInFlight(2)
    for tokens, seconds in times * 60:
        show(steps, [tokens, 0, 0, 0], seconds)
    assert steps.steps_back == 1


@settings(max_examples=30)
@given(
    st.integers(0, 999), st.integers(2, 4), st.sampled_from(["noise", "pauses", "busy"])
)
def test_where_launches_return_at_once_nothing_changes(seed, in_flight, trouble):
    """Whatever lengthens steps for another reason than their prompts."""
    rng = random.Random(seed)

    def disturbed(seconds, step):
        if trouble == "noise":
            return seconds * rng.uniform(0.7, 1.3)
        if trouble == "pauses":
            return seconds + 60 * (rng.random() < 0.03)
        return seconds * (3 if step // 20 % 3 == 0 else 1)

    steps, oldest = StepsInFlight(in_flight), in_flight - 1
    timed, loads = serve(steps, oldest, 400, seed, disturbed)
    assert steps.steps_back == oldest
    told = [each.prefill_tokens for each in timed]
    assert told == [tuple(loads[max(0, n - oldest)]) for n in range(400)]


def test_what_has_changed_is_found_again():
    steps = StepsInFlight(2)
    for back in (0, 1, 0):
        serve(steps, back, 600)
        assert steps.steps_back == back


def test_of_two_steps_the_fullest_ranks_are_put_together():
    steps = StepsInFlight(2)
    serve(steps, 0.5, 400)
    show(steps, [0, 600, 0, 0], 1.0)
    timed = show(steps, [0, 0, 100, 200], 1.0)
    assert sorted(timed.prefill_tokens) == [0, 0, 50, 400]
    assert sorted(timed.prefill_attended) == [0, 0, 350, 2800]


def test_a_new_wave_forgets_the_steps_and_keeps_what_is_known():
    steps = StepsInFlight(3)
    serve(steps, 1, 200)
    steps.reset()
    first = show(steps, [900, 0, 0, 0], 0.0)
    assert first.prefill_tokens == (900, 0, 0, 0), "there is no other"
    second = show(steps, [0, 0, 0, 0], 0.94)
    assert second.prefill_tokens == (900, 0, 0, 0)
    assert steps.steps_back == 1
