"""The differences between the releases of vLLM that our files serve."""

from types import SimpleNamespace

import pytest
from balance.upstream import (
    first_of,
    keep_prefill_interval,
    max_admitted,
)


def test_the_first_name_that_is_there_counts() -> None:
    owner = SimpleNamespace(new=1, newer=2)
    assert first_of(owner, "old", "new", "newer") == 1


def test_a_release_with_none_of_the_names_is_named() -> None:
    with pytest.raises(AttributeError, match="SimpleNamespace has none of old, new"):
        first_of(SimpleNamespace(), "old", "new")


def test_admission_may_stop_below_the_slots_of_the_model_runner() -> None:
    scheduler = SimpleNamespace(max_num_running_reqs=8)
    assert max_admitted(scheduler) == 8  # type: ignore[arg-type]
    scheduler.max_num_active_reqs = 5
    assert max_admitted(scheduler) == 5  # type: ignore[arg-type]


def test_held_requests_are_no_sign_that_prefills_cannot_keep_up() -> None:
    scheduler = SimpleNamespace(prefill_capacity_bound=True)
    keep_prefill_interval(scheduler)  # type: ignore[arg-type]
    assert scheduler.prefill_capacity_bound is False
    older = SimpleNamespace()
    keep_prefill_interval(older)  # type: ignore[arg-type]
    assert vars(older) == {}
