"""Who is silent, late or gone, by what the store has of each rank."""

import pytest
from balance.group.heartbeats import FAILED, LEFT, PATIENCE_BEATS, Heartbeats

ME, SIZE = 1, 4


@pytest.mark.parametrize(
    ("beats", "since", "silent"),
    [
        (PATIENCE_BEATS, 5.0, [2]),
        (PATIENCE_BEATS - 1, 5.0, []),  # a store that is late with ours, too
        (PATIENCE_BEATS, 4.9, []),  # not for long enough
    ],
)
def test_a_rank_that_stands_still_while_the_reader_does_not_is_silent(
    beats, since, silent
):
    heard = Heartbeats(ME, SIZE)
    heard.hear({0: "7 0 5", 1: "0 0 5", 2: "9 0 5", 3: LEFT}, 0, 5.0)
    said = {0: "8 0 5", 1: f"{beats} 0 5", 2: "9 0 5", 3: LEFT}
    heard.hear(said, beats, 9.0)
    assert heard.silent(since) == silent


def test_ranks_that_left_failed_or_are_behind_are_told_apart():
    heard = Heartbeats(ME, SIZE)
    heard.hear({0: "7 0 5", 1: "9 1 2", 2: FAILED}, 9, 5.0)
    assert heard.that_said(LEFT, FAILED) == [2]
    assert heard.behind((1, 2)) == [0]
    assert heard.late((1, 2), 6.0) == {"0": ((0, 5), 5.0), "2": (None, 5.0)}
    assert "3" in heard.late((1, 2), 99.0), "it has not come"
