"""In a pause nothing is pending, but what upstream drains even then."""

from vllm.v1.core.sched.interface import PauseState

from schedulers import make_scheduler
from test_pending import config_of, prompt_request, row_of, upstream_prefills

PROMPT = list(range(30))


def test_what_waits_is_not_pending_in_a_pause(moe_model):
    scheduler = make_scheduler(config_of(moe_model))
    scheduler.add_request(prompt_request("new", PROMPT, 5))
    assert row_of(scheduler).pending == 1
    for paused in (PauseState.PAUSED_NEW, PauseState.PAUSED_ALL):
        scheduler.set_pause_state(paused)
        assert row_of(scheduler).pending == 0
        assert upstream_prefills(scheduler) == {}


def test_what_holds_kv_blocks_is_pending_where_upstream_drains_it(moe_model):
    """From 0.32 on. On an earlier release this test gives its queue the later name."""
    scheduler = make_scheduler(config_of(moe_model))
    drains = not hasattr(scheduler, "skipped_waiting")
    if not drains:
        scheduler.kv_holding_waiting = scheduler.skipped_waiting
        del scheduler.skipped_waiting
    held = prompt_request("holds blocks", PROMPT, 5)
    scheduler.requests[held.request_id] = held
    scheduler.kv_holding_waiting.add_request(held)
    scheduler.waiting.add_request(prompt_request("new", PROMPT, 5))
    scheduler.set_pause_state(PauseState.PAUSED_NEW)
    row = row_of(scheduler)
    assert (row.pending, row.pending_tokens) == (1, len(PROMPT))
    if drains:
        assert upstream_prefills(scheduler) == {"holds blocks": len(PROMPT)}
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert row_of(scheduler).pending == 0
