"""Dispatch: which rank, and what is left of a request afterwards."""

import random
from collections import Counter
from hashlib import sha256
from itertools import accumulate
from multiprocessing import get_context

import pytest
from board import KEY_BYTES, SharedBoard, create_board

from vllm_balance.core.dispatch import (
    MISSING_WEIGHT,
    TO_ATTEND,
    TO_COMPUTE,
    Dispatch,
    PrefixMemory,
    chunk_tokens,
)


def send(dispatch, request, prompt_tokens):
    rank = dispatch.choose()
    dispatch.sent(request, rank, prompt_tokens)
    return rank


def test_the_least_context_wins_answers_included():
    dispatch = Dispatch(2, 8, TO_ATTEND)
    assert (send(dispatch, 0, 5000), send(dispatch, 1, 4000)) == (0, 1)
    assert dispatch.choose() == 1
    for _ in range(1001):
        dispatch.answered(1, 1)
    assert dispatch.choose() == 0, "the prompt still counts, with what followed it"
    dispatch.sent(0, 0, 2)  # more input of it
    assert dispatch.own == [(5002, 1), (5001, 1)]
    dispatch.ended(0)
    dispatch.answered(0, 9)  # too late
    assert dispatch.own[0] == (0, 0)
    dispatch.sent(2, 0, 10)
    dispatch.sent(3, 0, 10)
    assert dispatch.choose() == 0, "2 x (10 + 1500) are less than 5001 + 1500"


def front_ends(ranks, slots, servers, *cache):
    memory = create_board(get_context("spawn"), servers)
    boards = [SharedBoard(memory, server) for server in range(servers)]
    return [Dispatch(ranks, slots, TO_COMPUTE, board, *cache) for board in boards]


def test_front_ends_on_one_board_choose_as_one_does():
    """The rank that a request came to; of equal ranks, each prefers another."""
    assert [each.choose() for each in front_ends(2, 8, 2)] == [0, 1]
    rng = random.Random(3)
    alone, servers = Dispatch(4, 6), front_ends(4, 6, 3)
    open_: list[tuple[int, int]] = []
    for request in range(500):
        server, tokens = rng.randrange(3), rng.randrange(1, 9000)
        rank = servers[server].choose()
        loads = [a + 150 * b + 10**9 * (b >= 6) for a, b in alone.own]
        assert loads[rank] == min(loads)
        for dispatch in (alone, servers[server]):
            dispatch.sent(request, rank, tokens)
        open_.append((server, request))
        while len(open_) > 20:
            server, ended = open_.pop(rng.randrange(len(open_)))
            for dispatch in (alone, servers[server]):
                dispatch.answered(ended, 1)
                dispatch.ended(ended)


CHUNK = 100


def with_prefixes(ranks=2, slots=8, chunks=10_000):
    return Dispatch(ranks, slots, TO_COMPUTE, None, chunks, CHUNK)


def send_text(dispatch, request, text, pin=None):
    """A prompt of so many words, a chunk each."""
    texts = accumulate(text.split(), "{} {}".format)
    keys = [sha256(each.encode()).digest()[:KEY_BYTES] for each in texts]
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
    dispatch.answered(0, 1)
    dispatch.ended(0)
    worth = MISSING_WEIGHT * 10 * CHUNK
    # What others wait for there:
    dispatch.sent(1, 0, worth - TO_COMPUTE.request - 1)
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
        for dispatch in (quiet, attacked):
            dispatch.answered(turn, 1)
            if turn >= 5:
                dispatch.ended(turn - 5)
    assert homes == {0, 1, 2, 3}


def test_a_burst_of_one_long_prompt_is_spread():
    """Nobody has it yet. Once all have, its requests still come to all."""
    dispatch = with_prefixes(ranks=8, slots=64)
    for turn in range(2):
        sent = Counter(
            send_text(dispatch, (turn, request), session(0, 300))
            for request in range(64)
        )
        assert len(sent) == 8
        assert max(sent.values()) <= 16, sent
        for request in range(64):
            dispatch.answered((turn, request), 1)
            dispatch.ended((turn, request))


def test_a_rank_that_comes_back_has_nothing():
    dispatch = with_prefixes()
    send_text(dispatch, 0, session(0, 9), pin=1)
    dispatch.answered(0, 1)
    dispatch.ended(0)
    for ranks in (1, 2):
        dispatch.resize(ranks)
    assert send_text(dispatch, 1, session(0, 9)) == 0


def test_a_prefix_that_all_have_is_worth_computing_on_every_rank():
    """Whichever of eight front-ends computed it first."""
    servers = 8
    dispatches = front_ends(8, 64, servers, 10_000, CHUNK)
    send_text(dispatches[0], 0, session(0, 100, shared=90))
    dispatches[0].answered(0, 1)
    dispatches[0].ended(0)
    sent = Counter(
        send_text(dispatches[n % servers], n, session(n, 100, shared=90))
        for n in range(1, 65)
    )
    assert len(sent) == 8
    assert max(sent.values()) <= 16, sent
    for request in range(1, 65):
        dispatches[request % servers].ended(request)
    assert not any(dispatch._users for dispatch in dispatches)


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
            load, least = before[rank], min(before)
            worth = MISSING_WEIGHT * 170 * CHUNK
            room = any(requests < slots for _, requests in before)
            assert not room or load[1] < slots
            if room and least[1] < slots:
                weigh = TO_COMPUTE.request
                assert load[0] + weigh * load[1] <= least[0] + weigh * least[1] + worth
        sent.append(request)
        while len(sent) > 60:
            ended = sent.pop(rng.randrange(len(sent)))
            if rng.random() < 0.9:
                dispatch.answered(ended, 1)
            dispatch.ended(ended)
    assert min(used[1:]) > 0.1 * sum(used), used
    if hostile:
        assert used[0] < min(used[1:]), used
    else:
        assert min(used) > 0.2 * sum(used), used


@pytest.mark.parametrize("weights", [TO_COMPUTE, TO_ATTEND])
def test_random_operations_leave_no_count_behind(weights):
    """Also failures, answers that are late or of nobody, and ranks that come and go."""
    rng = random.Random(1)
    chunks = 50 * weights.to_compute
    dispatch = Dispatch(4, 4, weights, None, chunks, CHUNK)
    sent: dict[int, list[int]] = {}  # rank, to compute, context
    most = 0
    for request in range(5000):
        text = [rng.choice("ab") for _ in range(rng.randrange(9))] if chunks else ()
        keys = list(accumulate(text))
        rank = dispatch.choose(keys)
        assert 0 <= rank < dispatch.ranks
        if rng.random() < 0.7:  # else it is never sent
            tokens = CHUNK * len(keys) + rng.randrange(CHUNK)
            left = tokens - CHUNK * dispatch.memories[rank].found(keys)
            sent[request] = [rank, max(1, left), tokens]
            dispatch.sent(request, rank, tokens, keys)
        event, chosen = rng.random(), rng.choice([*sent, -1, request - 1])
        if event < 0.3:
            dispatch.answered(chosen, 3)
            if chosen in sent:
                sent[chosen] = [sent[chosen][0], 0, sent[chosen][2] + 3]
        elif event < 0.4 and chosen in sent:  # more input
            dispatch.sent(chosen, sent[chosen][0], 50)
            sent[chosen][1] += 50
            sent[chosen][2] += 50
        elif event < 0.97:
            for gone in {chosen, *rng.sample(sorted(sent), len(sent) // 20)}:
                sent.pop(gone, None)
                dispatch.ended(gone)
        else:
            dispatch.resize(rng.randrange(1, 6))
            sent = {name: to for name, to in sent.items() if to[0] < dispatch.ranks}
        most = max(most, len(sent))
        which = 1 if weights.to_compute else 2
        for rank, own in enumerate(dispatch.own):
            there = [each[which] for each in sent.values() if each[0] == rank]
            assert own == (sum(there), len(there))
            assert len(dispatch.memories[rank]) <= 50
        assert len(dispatch.memories) == dispatch.ranks
    assert most > 20
    for request in sent:
        dispatch.ended(request)
    assert set(dispatch.own) == {(0, 0)}
    assert not dispatch._requests
    assert not dispatch._users
    assert not any(memory.coming for memory in dispatch.memories)


def test_a_chunk_is_whole_blocks():
    sizes = {size: chunk_tokens(size) for size in (16, 128, 512, 528, 1000)}
    assert sizes == {16: 512, 128: 512, 512: 512, 528: 528, 1000: 1000}


def test_what_was_used_least_recently_goes_first_ends_before_beginnings():
    memory = PrefixMemory(6)

    def has(text):
        return memory.found(list(accumulate(text)))

    for text in ("abc", "def", "ab", "gh"):
        memory.used(list(accumulate(text)))
    found = {text: has(text) for text in ("abc", "abxy", "def", "gh", "bc", "")}
    assert found == {"abc": 2, "abxy": 2, "def": 2, "gh": 2, "bc": 0, "": 0}
    memory.used(list(accumulate("uvwxyz123")))
    assert has("uvwxyz123") == len(memory) == 6
