"""ATOM's coalescer and the exhaustive cycle, on hand-made rows."""

import pytest

from rivals import HOLD
from rivals.atom import AtomCoalescer
from rivals.exhaustive import ExhaustiveCycle
from vllm_balance.core.policies import OPEN
from vllm_balance.core.policies.rows import Snapshot


def ranks(
    decoding, pending, tokens=100, in_prompt=0, prefilled=0, milliseconds=50, ended=0
):
    """Rows of ranks with steps of 1,000 tokens, each prompt with so many."""
    columns = dict.fromkeys(Snapshot._fields, (0,) * len(decoding))
    columns |= {"decoding": decoding, "pending": pending}
    columns["ended"] = (ended, *columns["ended"][1:])
    columns["running"] = tuple(each + in_prompt for each in decoding)
    columns["pending_tokens"] = tuple(each * tokens for each in pending)
    for name, value in (
        ("max_tokens", 1000),
        ("max_running", 10),
        ("prefill_tokens", prefilled),
        ("step_time_us", 1000 * milliseconds),
    ):
        columns[name] = (value,) * len(decoding)
    return Snapshot(**columns)


SOME, ALL = ranks((4, 4), (1, 0)), ranks((4, 4), (2, 2))
FILLED = ranks((4, 4), (7, 7))


@pytest.mark.parametrize(
    ("states", "holds"),
    [
        ([FILLED], 0),
        ([ALL, FILLED], 1),
        # Nothing has come for three steps, from the second on.
        ([ALL] * 9, 3),
        # While a rank has no prompt, however many the others have.
        ([ranks((4, 4), (9, 0))] * 40, 30),
        ([ranks((4, 4), (1, 0), in_prompt=1)] * 40, 8),
        ([ranks((0, 0), (1, 0))], 0),
        ([ranks((0, 0), (0, 0))], 0),
    ],
)
def test_atom_waits_until_all_ranks_fill_a_step(states, holds):
    rule = AtomCoalescer()
    decided = [rule.decide(state) for state in states[: holds + 1]]
    assert decided == [HOLD] * holds + [OPEN]


def test_the_cycle_begins_with_more_the_longer_prefills_take():
    """With 20 slots of two ranks, one request in a hundred ends in a step."""
    begins = []
    for prefill_ms in (60, 2000):
        rule = ExhaustiveCycle()
        assert rule.decide(SOME) == HOLD, "nothing is known of decodes"
        for _ in range(100):
            rule.decide(ranks((50, 50), (0, 0)))
            rule.decide(ranks((50, 49), (0, 0), ended=1))
            prefill = ranks((50, 50), (0, 0), prefilled=1000, milliseconds=prefill_ms)
            rule.decide(prefill)
        begins.append(
            next(
                able
                for able in range(1, 10)
                if rule.decide(ranks((10 - able,) * 2, (able,) * 2)) == OPEN
            )
        )
    assert begins[0] < begins[1]


def test_a_cycle_ends_with_what_was_pending_when_it_began():
    rule = ExhaustiveCycle()
    for _ in range(3):
        rule.decide(ranks((4, 4), (0, 0)))
    wanted = ranks((1, 1), (9, 9), ended=6)
    assert rule.decide(wanted) == OPEN
    assert rule.decide(ranks((1, 1), (9, 9), prefilled=500)) == OPEN
    done = ranks((9, 9), (1, 1), prefilled=500)
    assert rule.decide(done) == HOLD
    assert rule.decide(ranks((0, 0), (1, 1))) == OPEN, "nobody decodes"
