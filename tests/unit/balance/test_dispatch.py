"""Dispatch by tokens and prefixes: which rank, and what is left of it afterwards."""

import random
from collections import Counter
from itertools import accumulate

import pytest
from vllm.v1.core.sched.balance.dispatch import (
    MISSING_WEIGHT,
    QUEUE_SAMPLE,
    REQUEST_TOKENS,
    Backlog,
    TokenDispatch,
    queued_tokens,
)


def send(dispatch, request, prompt_tokens):
    rank = dispatch.choose()
    dispatch.sent(request, rank, prompt_tokens)
    return rank


def test_the_least_prompt_tokens_win():
    dispatch = TokenDispatch(3, slots=8)
    sent = [send(dispatch, i, tokens) for i, tokens in enumerate((4000, 100, 900))]
    assert sent == [0, 1, 2]
    assert send(dispatch, 3, 100) == 1
    assert send(dispatch, 4, 100) == 1, "400 + 2 x 150 tokens are less than 900 + 150"


def test_a_rank_with_a_free_slot_comes_first():
    dispatch = TokenDispatch(2, slots=1)
    assert send(dispatch, 0, 1) == 0
    assert send(dispatch, 1, 9000) == 1
    assert send(dispatch, 2, 1) == 0, "no rank has a free slot"


def test_one_front_end_trusts_itself_several_believe_the_greater():
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


def test_a_front_end_takes_the_others_to_send_as_much_as_itself():
    dispatch = TokenDispatch(2, slots=8, servers=4)
    dispatch.publish([(0, 0), (1000, 0)])
    assert send(dispatch, 0, 300) == 0
    assert dispatch.choose() == 1, "4 x (300 + 150) tokens are more than 1000"


CHUNK = 100


def with_prefixes(ranks=2, slots=8, chunks=10_000, servers=1):
    return TokenDispatch(ranks, slots, servers, 0, chunks, CHUNK)


def send_text(dispatch, request, text, pin=None):
    """A prompt of so many words, a chunk each."""
    keys = list(accumulate(text.split(), "{} {}".format))
    rank = dispatch.choose(keys) if pin is None else pin
    dispatch.sent(request, rank, CHUNK * len(keys), keys)
    return rank


def session(number, words, shared=0):
    return " ".join(
        f"shared{word}" if word < shared else f"{number}-{word}"
        for word in range(words)
    )


def test_load_wins_over_a_prefix_by_the_same_formula():
    dispatch = with_prefixes()
    send_text(dispatch, 0, session(0, 10), pin=0)
    dispatch.first_token(0)
    dispatch.ended(0)
    worth = MISSING_WEIGHT * 10 * CHUNK
    dispatch.sent(1, 0, worth - REQUEST_TOKENS - 1)  # what others wait for there
    assert send_text(dispatch, 2, session(0, 10)) == 0
    dispatch.ended(2)
    dispatch.sent(3, 0, 2)
    assert send_text(dispatch, 4, session(0, 10)) == 1


def test_prompts_that_are_sent_and_given_up_change_no_later_choice():
    """Also if they are longer than all KV caches, or begin as others' prompts do."""
    rng = random.Random(4)
    quiet, attacked = (with_prefixes(4, slots=64, chunks=100) for _ in range(2))
    homes = set()
    for turn in range(400):
        for number in range(-20, 0):
            text = session(rng.choice((number * turn, rng.randrange(12))), 90)
            send_text(attacked, number, text)
        for number in range(-20, 0):
            attacked.ended(number)
        text = session(rng.randrange(12), 5 + turn // 20)
        rank = send_text(quiet, turn, text)
        assert send_text(attacked, turn, text) == rank, f"turn {turn}"
        homes.add(rank)
        cached = rng.choice((None, None, None, 3 * CHUNK))
        for dispatch in (quiet, attacked):
            dispatch.first_token(turn, cached)
            if turn >= 5:
                dispatch.ended(turn - 5)
    assert homes == {0, 1, 2, 3}


def test_a_rank_that_comes_back_has_nothing():
    dispatch = with_prefixes()
    send_text(dispatch, 0, session(0, 9), pin=1)
    dispatch.first_token(0)
    dispatch.ended(0)
    for ranks in (1, 2):
        dispatch.publish([(0, 0)] * ranks)
    assert send_text(dispatch, 1, session(0, 9)) == 0


def test_a_prefix_that_all_have_is_worth_computing_on_every_rank():
    dispatch = with_prefixes(ranks=8, slots=6)
    send_text(dispatch, 0, session(0, 100, shared=90))
    dispatch.first_token(0)
    dispatch.ended(0)
    sent = Counter(
        send_text(dispatch, request, session(request, 100, shared=90))
        for request in range(1, 33)
    )
    assert min(sent[rank] for rank in range(8)) >= 3, sent
    for request in range(1, 33):
        dispatch.ended(request)
    assert not dispatch._users


@pytest.mark.parametrize("hostile", [False, True])
def test_a_prefix_that_everybody_wants_draws_no_more_than_it_saves(hostile):
    """Hostile clients ask for it again and again on one rank. No request waits behind
    more than its prefix is worth, and none in a queue while another has a free slot."""
    rng = random.Random(5)
    ranks, slots, shared = 4, 16, 150
    dispatch = with_prefixes(ranks, slots, chunks=2000)
    sent: list[int] = []
    used = [0] * ranks
    for request in range(1000):
        if hostile and rng.random() < 0.5:
            send_text(dispatch, request, session(-request, 160, shared), pin=0)
        else:
            before = list(dispatch.own)
            rank = send_text(dispatch, request, session(request % 40, 170, shared))
            used[rank] += 1
            load, least = before[rank], min(before, key=lambda own: own.prompt_tokens)
            worth = MISSING_WEIGHT * 170 * CHUNK
            room = any(own.requests < slots for own in before)
            assert not room or load.requests < slots
            if room and least.requests < slots:
                assert (
                    load.prompt_tokens + REQUEST_TOKENS * load.requests
                    <= least.prompt_tokens + REQUEST_TOKENS * least.requests + worth
                )
        sent.append(request)
        while len(sent) > 60:
            ended = sent.pop(rng.randrange(len(sent)))
            if rng.random() < 0.9:
                dispatch.first_token(ended)
            dispatch.ended(ended)
    assert min(used[1:]) > 0.1 * sum(used), used
    if hostile:
        assert used[0] < min(used[1:]), used
    else:
        assert min(used) > 0.2 * sum(used), used


def test_random_operations_leave_no_count_and_no_belief_behind():
    """Also failures, answers that are late or of nobody, and ranks that come and go."""
    rng = random.Random(1)
    dispatch = with_prefixes(4, slots=4, chunks=50, servers=3)
    sent: dict[int, tuple[int, int]] = {}
    most = 0
    for request in range(10_000):
        text = [rng.choice("ab") for _ in range(rng.randrange(9))]
        keys = list(accumulate(text))
        rank = dispatch.choose(keys)
        assert 0 <= rank < len(dispatch.own)
        if rng.random() < 0.7:  # else it is never sent
            tokens = CHUNK * len(keys) + rng.randrange(CHUNK)
            left = tokens - dispatch.memories[rank].found(keys)
            sent[request] = rank, max(1, left) if keys else tokens
            dispatch.sent(request, rank, tokens, keys)
        event, chosen = rng.random(), rng.choice([*sent, -1, request - 1])
        if event < 0.3 and chosen in sent:
            sent[chosen] = sent[chosen][0], 0
            dispatch.first_token(chosen, rng.choice((None, 0, rng.randrange(900))))
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
            assert dispatch.memories[rank].held() <= 50 * CHUNK
        assert len(dispatch.memories) == len(dispatch.own)
    assert most > 20
    for request in sent:
        dispatch.ended(request)
    assert set(dispatch.own) == {Backlog()}
    assert not dispatch._requests


@pytest.mark.parametrize(
    ("sample", "waiting", "tokens"),
    [([], 0, 0), ([5, 7], 2, 12), ([10] * QUEUE_SAMPLE, 10_000, 100_000)],
)
def test_a_long_queue_is_taken_to_be_like_its_beginning(sample, waiting, tokens):
    assert queued_tokens(sample, waiting) == tokens
