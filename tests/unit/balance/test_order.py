"""In which order a rank starts the prompts that wait."""

from collections import deque

from balance.policies.order import FIRST, OVERTAKEN, ShortFirst, sort_first
from hypothesis import given
from hypothesis import strategies as st

arrivals = st.lists(
    st.tuples(st.integers(0, 50), st.integers(1, 400)), min_size=1, max_size=FIRST
)


@given(arrivals, st.integers(1, 100))
def test_who_passes_is_shorter_by_more_than_was_computed_meanwhile(arrivals, step):
    order, now, came = ShortFirst(), 0, {}
    queue = deque()
    for gap, tokens in arrivals:
        for _ in range(gap):
            order.end_step({}, step, came)
            now += step
        name = str(len(came))
        came[name] = now, tokens
        order.end_step({name: tokens}, 0, came)
        queue.append(name)
    sort_first(queue, lambda n: order.place(n, False, True))
    for place, name in enumerate(queue):
        mine, tokens = came[name]
        for other in list(queue)[:place]:
            theirs, shorter = came[other]
            passes = int(other) > int(name)
            assert not passes or theirs - mine < OVERTAKEN * (tokens - shorter)
            # However many come: none that does so after that much was computed.
            assert not passes or theirs < mine + OVERTAKEN * tokens


def test_equal_prompts_stay_as_they_came():
    order, names = ShortFirst(), [str(n) for n in range(40)]
    order.end_step(dict.fromkeys(reversed(names), 7), 0, names)
    queue = deque(names)
    sort_first(queue, lambda name: order.place(name, False, True))
    assert list(queue) == names


def test_only_the_first_are_put_in_order():
    queue = deque(range(FIRST + 20, 0, -1))
    sort_first(queue, lambda n: (0, n))
    assert list(queue) == [*range(21, FIRST + 21), *range(20, 0, -1)]


def test_who_has_gone_is_forgotten_and_who_is_there_is_not():
    order = ShortFirst()
    order.end_step({"long": 500}, 1000, ["long"])
    for n in range(1000):
        order.end_step({f"{n}": 5}, 10, ["long", f"{n}"])
    assert order.place("long", False, True) == (1, 500)
    assert len(order._places) < 110
