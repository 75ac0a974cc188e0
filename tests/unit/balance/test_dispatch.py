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


def test_ranks_come_and_go() -> None:
    dispatch = TokenDispatch(2, slots=8)
    assert [send(dispatch, i, 1000) for i in range(2)] == [0, 1]
    dispatch.publish([(0, 0)] * 3)
    assert send(dispatch, 2, 10) == 2
    dispatch.publish([(0, 0)])
    assert send(dispatch, 3, 10) == 0
    dispatch.publish([(0, 0)] * 3)
    for request in (1, 2):  # answered late, by ranks that were gone
        dispatch.ended(request)
    assert dispatch.own == [Backlog(1010, 2), Backlog(), Backlog()]


def test_more_input_of_a_request_goes_where_the_request_is() -> None:
    dispatch = TokenDispatch(2, slots=8)
    rank = send(dispatch, 0, 1000)
    dispatch.first_token(0)
    assert dispatch.rank_of(0) == rank
    assert dispatch.rank_of(1) is None
    dispatch.sent(0, rank, 50)
    assert dispatch.own[rank] == Backlog(50, 1)


def test_what_goes_to_a_rank_that_was_not_heard_of_yet_is_not_counted() -> None:
    dispatch = TokenDispatch(2, slots=8)
    dispatch.sent(0, 2, 1000)
    assert dispatch.own == [Backlog()] * 2
    dispatch.first_token(0)
    dispatch.ended(0)
    dispatch.publish([(0, 0)] * 3)
    assert dispatch.own == [Backlog()] * 3


def test_random_operations_leave_no_count_behind() -> None:
    """Requests that are sent, or fail before; more input, first tokens, ends; ranks
    that come and go; answers that come twice, late, or of requests that never were."""
    rng = random.Random(1)
    dispatch = TokenDispatch(4, slots=4, servers=3)
    sent: dict[int, tuple[int, int]] = {}
    most = 0
    for request in range(10_000):
        rank = dispatch.choose()
        assert 0 <= rank < len(dispatch.own)
        if rng.random() < 0.7:  # else it is never sent
            sent[request] = rank, rng.randrange(5000)
            dispatch.sent(request, *sent[request])
        event, chosen = rng.random(), rng.choice([*sent, -1, request - 1])
        if event < 0.3 and chosen in sent:
            sent[chosen] = sent[chosen][0], 0
            dispatch.first_token(chosen)
        elif event < 0.4 and chosen in sent:  # more input
            sent[chosen] = sent[chosen][0], 50
            dispatch.sent(chosen, *sent[chosen])
        elif event < 0.97:
            for gone in {chosen, *rng.sample(sorted(sent), len(sent) // 20)}:
                sent.pop(gone, None)
                dispatch.ended(gone)
        else:
            ranks = rng.randrange(1, 6)
            dispatch.publish([(rng.randrange(9000), rng.randrange(9))] * ranks)
            sent = {name: to for name, to in sent.items() if to[0] < ranks}
        most = max(most, len(sent))
        for rank, own in enumerate(dispatch.own):
            prompts = [tokens for to, tokens in sent.values() if to == rank]
            assert own == Backlog(sum(prompts), len(prompts))
    assert most > 20
    for request in sent:
        dispatch.ended(request)
    assert set(dispatch.own) == {Backlog()}
    assert not dispatch._requests


@pytest.mark.parametrize(
    ("sample", "waiting", "tokens"),
    [([], 0, 0), ([5, 7], 2, 12), ([10] * QUEUE_SAMPLE, 10_000, 100_000)],
)
def test_a_long_queue_is_taken_to_be_like_its_beginning(
    sample: list[int], waiting: int, tokens: int
) -> None:
    assert queued_tokens(sample, waiting) == tokens
