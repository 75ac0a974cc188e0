"""Which prompts are pending, and since when."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from vllm_balance.core.pending import FRESH, PendingAges, PendingWork, Prompt, Refusal


def requests(names):
    more = {"arrival_time": 1.0, "num_output_tokens": 0}
    return [SimpleNamespace(request_id=name, **more) for name in names]


class Cache:
    """Each prompt has ten tokens and takes two blocks; some of it is computed."""

    def __init__(self):
        self.computed, self.asked = 0, []

    def look_up(self, request, before):
        self.asked.append(request.request_id)
        return Prompt(10, self.computed, 2)


def pending_of(waiting, free, begun="", **arguments):
    work = PendingWork(Cache().look_up)
    found = work.read(requests(begun), requests(waiting), free, **arguments)
    return "".join(found.tokens)


def test_the_first_that_does_not_fit_ends_the_list():
    assert pending_of("abcd", free=5) == "ab"
    assert pending_of("abcd", free=5, begun="x") == "xa"
    assert pending_of("ab", free=-1, begun="x") == "x", "what has begun goes on"


def test_whom_upstream_refused_ends_the_list():
    refusal = Refusal("b", free=100, running=1)
    assert pending_of("abcd", free=100, refusal=refusal) == "a"


def test_a_refusal_lasts_until_something_is_free():
    refusal = Refusal("a", free=5, running=3)
    assert refusal.lasts(free=5, running=3)
    assert refusal.lasts(free=4, running=4)
    assert not refusal.lasts(free=6, running=3)
    assert not refusal.lasts(free=5, running=2)
    assert not refusal._replace(running=0).lasts(free=5, running=0)


def test_only_the_first_prompts_are_looked_up_again():
    cache = Cache()
    work, waiting = PendingWork(cache.look_up), requests("abcdefghijkl")
    assert work.read((), waiting, 100).attended == 12 * 10 * 10 // 2
    cache.asked, cache.computed = [], 4
    found = work.read((), waiting, 100)
    assert cache.asked == [each.request_id for each in waiting[:FRESH]]
    assert list(found.tokens.values()) == [6] * FRESH + [10] * 4
    assert found.attended == FRESH * (100 - 16) // 2 + 4 * 50
    found = work.read((), waiting, 100, known={"a": 3, "l": 9})
    assert (found.tokens["a"], found.tokens["l"]) == (6, 1)


def test_one_that_was_away_is_looked_up_anew():
    """It may have been preempted since, and have more tokens."""
    cache = Cache()
    work, waiting = PendingWork(cache.look_up), requests("abcdefghijkl")
    for now in (waiting, waiting[:-1], waiting):
        cache.asked = []
        work.read((), now, 100)
    assert cache.asked == [*"abcdefgh", "l"]


@given(
    st.lists(
        st.tuples(st.floats(0, 9), st.sets(st.sampled_from("abcdef"))), max_size=30
    )
)
def test_the_age_is_that_of_the_longest_unbroken_stay(steps):
    ages, now, since = PendingAges(), 0.0, {}
    for seconds, pending in steps:
        now += seconds
        left = sorted(since[name] for name in since.keys() - pending)
        since = {name: since.get(name, now) for name in pending}
        oldest, gone = ages.update(pending, now)
        assert oldest == min(since.values(), default=now)
        assert sorted(gone) == left
