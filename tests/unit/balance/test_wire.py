"""A row arrives as it was sent, or not at all."""

import pytest
from balance.group.wire import WIDTH, decode, encode
from balance.policies.rows import Row
from hypothesis import given
from hypothesis import strategies as st

ROWS = st.builds(Row, *[st.integers(-(2**63), 2**63 - 1)] * len(Row._fields))


@given(st.lists(ROWS, min_size=1, max_size=4))
def test_rows_arrive(rows):
    assert [Row(*row) for row in decode(map(encode, rows))] == rows


@given(ROWS, st.integers(0, WIDTH - 1), st.integers(0, 31))
def test_one_bit_that_changed_on_the_way_is_an_error(row, place, bit):
    good, bad = encode(row), encode(row)
    assert len(good) == WIDTH
    bad[place] ^= 1 << bit
    with pytest.raises(RuntimeError, match="the row of rank 1 arrived damaged"):
        decode([good, bad])


def test_a_row_that_never_came_is_an_error():
    """A buffer of zeros, as one that nobody wrote to. (Its checksum is not 0.)"""
    with pytest.raises(RuntimeError, match="the row of rank 0 arrived damaged"):
        decode([[0] * WIDTH])
