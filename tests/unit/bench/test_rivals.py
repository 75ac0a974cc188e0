"""Rules of other engines, on hand-made rows."""

import pytest

from rivals import HOLD
from rivals.atom import AtomCoalescer
from rivals.intervals import Spaced, VLLMInterval
from rivals.mindie import MindIE, Stage
from rivals.sglang import SGLangDelayer0523
from vllm_balance.core.policies import OPEN
from vllm_balance.core.policies.rows import Snapshot


def ranks(decoding, pending, in_prompt=0, prefilled=0, milliseconds=50):
    """Rows of ranks with steps of 1,000 tokens and prompts of 100."""
    columns = dict.fromkeys(Snapshot._fields, (0,) * len(decoding))
    columns |= {"decoding": decoding, "pending": pending}
    columns["running"] = tuple(each + in_prompt for each in decoding)
    columns["pending_tokens"] = tuple(each * 100 for each in pending)
    for name, value in (
        ("max_tokens", 1000),
        ("max_running", 10),
        ("prefill_tokens", prefilled),
        ("step_time_us", 1000 * milliseconds),
    ):
        columns[name] = (value,) * len(decoding)
    return Snapshot(**columns)


ALL, FILLED = (ranks((4, 4), pending) for pending in ((2, 2), (9, 9)))


@pytest.mark.parametrize(
    ("states", "holds"),
    [
        ([FILLED], 0),
        ([ALL, FILLED], 1),
        # Nothing has come for ten steps, from the second on.
        ([ALL] * 20, 10),
        # While a rank has no prompt, however many the others have.
        ([ranks((4, 4), (9, 0))] * 300, 200),
        ([ranks((4, 4), (1, 0), in_prompt=1)] * 300, 100),
        ([ranks((0, 0), (1, 0))], 0),
    ],
)
def test_atom_waits_until_all_ranks_fill_a_step(states, holds):
    rule = AtomCoalescer()
    decided = [rule.decide(state) for state in states[: holds + 1]]
    assert decided == [HOLD] * holds + [OPEN]


@pytest.mark.parametrize("queued", [0, 3])
def test_an_interval_of_vllm_holds_between_its_steps_unless_a_queue_was_left(queued):
    rule, releases = VLLMInterval(4), []
    for step in range(8):
        rows = ranks((4, 4), (1, 1))._replace(step=(step, step), waiting=(queued, 1))
        releases.append([decision == OPEN for decision in rule.decide(rows)])
    first = [True, *[bool(queued)] * 3]
    # The second rank has a queue as well: its own request.
    assert [each[0] for each in releases] == [True] * 8 if queued else first * 2
    assert all(each[1] for each in releases)


def test_a_rank_of_vllm_without_decodes_does_not_hold():
    rule = VLLMInterval(4)
    rows = ranks((4, 0), (1, 1))._replace(step=(1, 1), waiting=(0, 0))
    assert rule.decide(rows) == [HOLD, OPEN]


def test_so_many_decodes_follow_each_prefill_of_sglang():
    rule = Spaced(SGLangDelayer0523(1), 3)
    assert rule.decide(ALL) == OPEN
    prefilled = ranks((4, 4), (2, 2), prefilled=100)
    decided = [rule.decide(each) for each in (prefilled, ALL, ALL, ALL)]
    assert decided == [*[HOLD] * 3, OPEN]


def test_ranks_of_mindie_prefill_if_as_many_wish_for_it_as_for_decodes():
    rule = MindIE(Stage.WASTE)
    one, two = (ranks((4, 4, 4), pending) for pending in ((1, 0, 0), (1, 1, 0)))
    # 6 free slots waste 0.3 s a step, and 4 decodes lose 0.6 s by a prefill.
    assert [rule.decide(one) for _ in range(4)] == [HOLD] * 4
    rule.reset()
    assert [rule.decide(two) for _ in range(4)] == [HOLD, OPEN, HOLD, OPEN]


def test_mindie_prefills_once_little_is_left_of_the_limit_of_first_tokens():
    rule = MindIE(Stage.LAXITY)
    for _ in range(200):
        rule.decide(ranks((4, 4), (0, 0), milliseconds=40))
    waits = []
    for age in (0.1, 1.1, 1.3):
        rows = ranks((4, 4), (1, 1), milliseconds=40)
        ages = int(age * 1e6), int(age * 1e6)
        waits.append(rule.decide(rows._replace(pending_age_us=ages)))
    assert waits == [HOLD, HOLD, OPEN], "a decode has a fifth of its limit left"
