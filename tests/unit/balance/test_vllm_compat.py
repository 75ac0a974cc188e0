"""The differences between the releases of vLLM that our files serve."""

from types import SimpleNamespace

import pytest
from balance.measure.vllm_compat import (
    keep_prefill_interval,
    long_prefill_threshold,
    max_admitted,
)


def test_admission_may_stop_below_the_slots_of_the_model_runner():
    streams = {"num_waiting_for_streaming_input": 2}
    scheduler = SimpleNamespace(max_num_running_reqs=8, **streams)
    assert max_admitted(scheduler) == 8
    scheduler.max_num_active_reqs = 5
    assert max_admitted(scheduler) == 5
    scheduler.reset_preempted_req_ids = set()  # later an input stream has a slot
    assert max_admitted(scheduler) == 3


@pytest.mark.parametrize(
    ("requests", "adaptive", "threshold"),
    [
        ((3, 5), None, 40),
        ((0, 1), None, 40),
        ((0, 1), False, 0),
        ((3, 5), False, 40),
        ((3, 5), True, 100),
        ((30, 50), True, 40),
    ],
)
def test_the_limit_of_long_prompts(requests, adaptive, threshold):
    """None: a release without shares of the step, where a request alone has it, too."""
    config = SimpleNamespace(
        long_prefill_token_threshold=40, max_num_batched_tokens=800
    )
    scheduler = SimpleNamespace(
        scheduler_config=config, get_request_counts=lambda: requests
    )
    if adaptive is not None:
        scheduler.adaptive_long_prefill_threshold = adaptive
    assert long_prefill_threshold(scheduler) == threshold


def test_held_requests_are_no_sign_that_prefills_cannot_keep_up():
    scheduler = SimpleNamespace(prefill_capacity_bound=True)
    keep_prefill_interval(scheduler)  # type: ignore[arg-type]
    assert scheduler.prefill_capacity_bound is False
    older = SimpleNamespace()
    keep_prefill_interval(older)  # type: ignore[arg-type]
    assert vars(older) == {}
