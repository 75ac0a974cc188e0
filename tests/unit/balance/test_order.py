"""In which order a rank starts the prompts that wait."""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from vllm_balance.core.policies.order import ShortFirst

prompts = st.lists(st.integers(1, 400), min_size=1, max_size=60)


def sorted_by(order, queue, pending):
    """The names, after those that are pending have been put in order."""
    queue = deque(queue)
    order.sort(queue, list(queue), pending, pending)
    return list(queue)


@given(prompts, st.lists(st.integers(1, 9), min_size=60, max_size=60))
def test_none_is_passed_by_more_than_it_has_itself(tokens, together):
    """However many come at once, and if nothing is computed meanwhile."""
    order, queue, pending = ShortFirst(), [], {}
    while tokens:
        new, tokens = tokens[: together[0]], tokens[together[0] :]
        together = together[1:]
        names = [str(len(pending) + n) for n in range(len(new))]
        pending |= dict(zip(names, new, strict=True))
        queue = sorted_by(order, [*queue, *names], pending)
    assert sorted(queue) == sorted(pending)
    for place, name in enumerate(queue):
        passed_by = [each for each in queue[:place] if int(each) > int(name)]
        assert sum(pending[each] for each in passed_by) <= pending[name]
        assert all(pending[each] < pending[name] for each in passed_by)


def test_short_prompts_pass_long_ones_and_equal_ones_do_not():
    order = ShortFirst()
    pending = {"long": 100, "middle": 60, "short": 30, "other": 30, "last": 10}
    queue = sorted_by(order, pending, pending)
    assert queue == ["last", "short", "middle", "long", "other"]


def test_who_is_not_pending_or_any_more_is_neither_moved_nor_passed():
    order, queue = ShortFirst(), ["long", "blocked", "short"]
    assert sorted_by(order, queue, {"long": 90, "short": 5}) == queue
    all_pending = {"long": 90, "blocked": 50, "short": 5}
    assert sorted_by(order, queue, all_pending) == ["blocked", "long", "short"]
    order = ShortFirst()
    sorted_by(order, ["long"], {"long": 90})
    assert sorted_by(order, ["long", "short"], {"short": 5}) == ["long", "short"]


def test_who_has_gone_is_forgotten_and_who_is_there_is_not():
    order = ShortFirst()
    sorted_by(order, ["long"], {"long": 500})
    for n in range(1000):
        sorted_by(order, ["long", str(n)], {"long": 500, str(n): 300})
    assert len(order._prompts) < 110
    assert order._prompts["long"].allowed == 200
