"""Dispatch by context: which rank, and what is left of a request afterwards."""

import random
from collections import Counter

import pytest
from vllm.v1.core.sched.balance.context_dispatch import ContextDispatch
from vllm.v1.core.sched.balance.dispatch import Backlog


def send(dispatch, request, prompt_tokens):
    rank = dispatch.choose([b"any"])
    dispatch.sent(request, rank, prompt_tokens, [b"any"])
    return rank


def test_the_least_context_wins_answers_included():
    dispatch = ContextDispatch(2, slots=8)
    assert (send(dispatch, 0, 5000), send(dispatch, 1, 4000)) == (0, 1)
    assert dispatch.choose() == 1
    assert dispatch.first_token(1) is None
    for _ in range(1001):
        dispatch.generated(1, 1)
    assert dispatch.choose() == 0, "the prompt still counts, with what followed it"
    dispatch.sent(0, 0, 2)  # more input of it
    assert dispatch.own == [Backlog(5002, 1), Backlog(5001, 1)]
    dispatch.ended(0)
    assert dispatch.choose() == 0
    dispatch.generated(0, 9)  # too late
    assert dispatch.own[0] == Backlog()


def test_a_request_counts_beside_its_context():
    dispatch = ContextDispatch(2, slots=8)
    for request in range(3):
        dispatch.sent(request, 1, 10)
    dispatch.sent(3, 0, 3000)
    assert dispatch.choose() == 0, "3000 + 1500 are less than 3 x (10 + 1500)"
    dispatch.generated(3, 31)
    assert dispatch.choose() == 1


def test_a_free_slot_comes_first():
    dispatch = ContextDispatch(2, slots=1)
    assert send(dispatch, 0, 1) == 0
    assert send(dispatch, 1, 90_000) == 1
    assert send(dispatch, 2, 1) == 0, "no rank has a free slot"


@pytest.mark.parametrize("servers", [1, 4])
def test_equal_prompts_are_spread_over_all_ranks(servers):
    fronts = [ContextDispatch(64, 32, servers, each) for each in range(servers)]
    sent = Counter[int]()
    for request in range(2048):
        if request % 64 == 0:  # the ranks' counts come after some requests
            told = [(3000 * sent[rank], sent[rank]) for rank in range(64)]
            for front in fronts:
                front.publish(told)
        sent[send(fronts[request % servers], request, 3000)] += 1
    assert max(sent.values()) == 32, sent


def test_random_operations_leave_no_token_behind():
    """Aborts, more input, answers of nobody, and ranks that come and go."""
    rng = random.Random(1)
    dispatch = ContextDispatch(4, slots=4, servers=2)
    sent: dict[int, list[int]] = {}
    for request in range(5000):
        sent[request] = [send(dispatch, request, 9 * request), 9 * request]
        for chosen in rng.choices([*sent, -1], k=6):
            if rng.random() < 0.3:
                dispatch.ended(chosen)
                sent.pop(chosen, None)
                continue
            tokens = rng.randrange(1, 9)
            dispatch.generated(chosen, tokens)
            if chosen in sent:
                dispatch.sent(chosen, sent[chosen][0], 100)
                sent[chosen][1] += tokens + 100
        if rng.random() < 0.03:
            ranks = rng.randrange(1, 6)
            dispatch.publish([(rng.randrange(90_000), rng.randrange(9))] * ranks)
            sent = {name: to for name, to in sent.items() if to[0] < ranks}
        for rank, own in enumerate(dispatch.own):
            contexts = [tokens for to, tokens in sent.values() if to == rank]
            assert own == Backlog(sum(contexts), len(contexts))
    for request in sent:
        dispatch.ended(request)
    assert set(dispatch.own) == {Backlog()}
