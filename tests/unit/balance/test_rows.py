"""The rows that the ranks exchange."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from snapshots import IDLE, rows, snapshot


@given(
    ranks=st.lists(rows(), min_size=2, max_size=6),
    field=st.sampled_from(["step", "wave"]),
    data=st.data(),
)
def test_rows_of_different_steps_are_refused(ranks, field, data):
    rank = data.draw(st.integers(0, len(ranks) - 1))
    other = getattr(ranks[rank], field) + data.draw(st.integers(1, 99))
    ranks[rank] = ranks[rank]._replace(**{field: other})
    with pytest.raises(RuntimeError, match=f"rank {rank}: .*{field} {other}"):
        snapshot(ranks)


def test_rows_of_different_length_are_refused():
    with pytest.raises(ValueError, match="longer"):
        snapshot([IDLE, (*IDLE, 0)])
