"""How long requests have been pending."""

from types import SimpleNamespace

from balance.measure.ages import Holds, PendingAges
from hypothesis import given
from hypothesis import strategies as st


@given(
    st.lists(
        st.tuples(st.floats(0, 9), st.sets(st.sampled_from("abcdef"))), max_size=30
    )
)
def test_the_age_is_that_of_the_longest_unbroken_stay(steps):
    ages, now, since = PendingAges(), 0.0, {}
    for seconds, pending in steps:
        now += seconds
        since = {name: since.get(name, now) for name in pending}
        oldest = ages.oldest(frozenset(pending), now)
        assert oldest == max((now - start for start in since.values()), default=0)


def test_a_hold_of_a_prompt_that_lost_its_tokens_ends_with_its_next_ones():
    """Once it went on until more was computed than before: 51 steps for holds of 5."""
    holds, a = Holds(), frozenset("a")
    steps = [(100, True)] * 5 + [(0, False), (0, True), (64, False)]
    ended = []
    for number, (computed, held) in enumerate(steps):
        requests = {"a": SimpleNamespace(num_computed_tokens=computed)}
        ended += holds.end_step(requests, a, set("a") if held else set(), a, number)
    assert ended == [(6, 7)]
    assert holds.longest == 0
