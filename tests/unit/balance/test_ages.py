"""How long requests have been pending."""

from balance.measure.ages import PendingAges
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
