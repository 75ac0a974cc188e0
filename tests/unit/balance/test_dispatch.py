"""Dispatch by prompt tokens: which rank, and what is left of it afterwards."""

from __future__ import annotations

import random

import pytest
from vllm.v1.core.sched.balance.dispatch import (
    QUEUE_SAMPLE,
    REQUEST_TOKENS,
    Backlog,
    TokenDispatch,
    queued_tokens,
)


def send(dispatch: TokenDispatch, request: int, prompt_tokens: int) -> int:
    rank = dispatch.choose()
    dispatch.sent(request, rank, prompt_tokens)
    return rank


def test_the_least_prompt_tokens_win() -> None:
    dispatch = TokenDispatch(3, slots=8)
    assert [send(dispatch, i, tokens) for i, tokens in enumerate((4000, 100, 900))] == [
        0,
        1,
        2,
    ]
    assert send(dispatch, 3, 100) == 1
    assert send(dispatch, 4, 100) == 1, "400 + 2 x 150 tokens are less than 900 + 150"


def test_a_first_token_takes_the_prompt_away_and_leaves_the_request() -> None:
    dispatch = TokenDispatch(2, slots=8)
    send(dispatch, 0, 4000)
    send(dispatch, 1, 100)
    dispatch.first_token(0)
    assert send(dispatch, 2, REQUEST_TOKENS) == 0
    dispatch.first_token(1)
    assert send(dispatch, 3, 1) == 1, "one request each, but a prompt on rank 0"


def test_a_rank_with_a_free_slot_comes_first() -> None:
    dispatch = TokenDispatch(2, slots=1)
    assert send(dispatch, 0, 1) == 0
    assert send(dispatch, 1, 9000) == 1
    assert send(dispatch, 2, 1) == 0, "no rank has a free slot"


def test_requests_in_flight_count_without_prompts() -> None:
    dispatch = TokenDispatch(2, slots=8)
    for request in range(3):
        dispatch.sent(request, 0, 10)
        dispatch.first_token(request)
    dispatch.sent(9, 1, 2 * REQUEST_TOKENS - 1)
    assert dispatch.choose() == 1
    dispatch.sent(10, 1, 1)
    assert dispatch.choose() == 0


def test_one_front_end_trusts_itself_several_believe_the_greater() -> None:
    published = [(5000, 3), (0, 0)]
    alone = TokenDispatch(2, slots=8)
    alone.publish(published)
    assert alone.choose() == 0
    first, second = (TokenDispatch(2, 8, servers=2, server=i) for i in (0, 1))
    assert (first.choose(), second.choose()) == (0, 1), "of equal ranks, each another"
    first.publish(published)
    assert first.choose() == 1
    assert send(first, 0, 9000) == 1
    first.publish(published)  # from before that request arrived there
    assert first.choose() == 0, "its own 9000 tokens are not forgotten"


def test_a_front_end_takes_the_others_to_send_as_much_as_itself() -> None:
    dispatch = TokenDispatch(2, slots=8, servers=4)
    dispatch.publish([(0, 0), (1000, 0)])
    assert send(dispatch, 0, 300) == 0
    assert dispatch.choose() == 1, "4 x (300 + 150) tokens are more than 1000"


def test_random_lives_leave_nothing_behind() -> None:
    """Answers, aborts before and after the first token, and events that come twice,
    for a request that was never taken, or out of order."""
    rng = random.Random(1)
    dispatch = TokenDispatch(4, slots=4, servers=3)
    alive: list[int] = []
    for request in range(20_000):
        send(dispatch, request, rng.randrange(1, 5000))
        alive.append(request)
        while alive and rng.random() < len(alive) / 40:
            chosen = alive[rng.randrange(len(alive))]
            dispatch.first_token(chosen)
            if rng.random() < 0.7:
                dispatch.ended(chosen)
                alive.remove(chosen)
            dispatch.first_token(rng.choice([chosen, -1]))
            dispatch.ended(-1)
    for request in alive:
        dispatch.ended(request)
    assert dispatch.own == [Backlog()] * 4


@pytest.mark.parametrize(
    ("sample", "waiting", "tokens"),
    [([], 0, 0), ([5, 7], 2, 12), ([10] * QUEUE_SAMPLE, 10_000, 100_000)],
)
def test_a_long_queue_is_taken_to_be_like_its_beginning(
    sample: list[int], waiting: int, tokens: int
) -> None:
    assert queued_tokens(sample, waiting) == tokens
