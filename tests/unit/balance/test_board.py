"""The board of API servers that run at the same time."""

import gc
import multiprocessing
import random
import time
from argparse import Namespace
from ctypes import addressof

from board import (
    CELLS,
    KEY_BYTES,
    SharedBoard,
    board_of,
    create_board,
    hand_board,
)

from vllm_balance.core.dispatch import TO_COMPUTE, Dispatch

SERVERS, RANKS = 4, 3
CONTEXT = multiprocessing.get_context("spawn")


def keys(name, chunks):
    return [b"%0*d" % (KEY_BYTES, 1000 * name + chunk) for chunk in range(chunks)]


def test_what_one_server_writes_all_read():
    memory = create_board(CONTEXT, 2)
    first, second = SharedBoard(memory, 0), SharedBoard(memory, 1)
    first.tokens[2] += 700
    second.tokens[2] += 1
    second.requests[0] += 2
    assert first.totals(3) == second.totals(3) == [[0, 0, 701], [2, 0, 0]]
    first.publish(2, keys(1, 3))
    assert [*second.read_others()] == [(2, key) for key in reversed(keys(1, 3))]
    assert not [*first.read_others()]
    first.publish(300, keys(2, CELLS + 5))
    heard = [*second.read_others()]
    assert heard == [(300, key) for key in reversed(keys(2, CELLS))], "the beginning"


def say(args):
    board = board_of(args.server)
    assert board is not None
    board.tokens[0] += 5 + args.server


def test_api_servers_are_started_with_the_board():
    """By their arguments; the process that starts them has none itself."""
    args = Namespace(server=1)
    assert hand_board(args, CONTEXT, 1) is args
    handed = hand_board(args, CONTEXT, 2)
    process = CONTEXT.Process(target=say, args=(handed,))
    process.start()
    process.join()
    assert process.exitcode == 0
    assert SharedBoard(handed.balance_board._memory, 0).totals(1) == [[6], [0]]
    assert board_of(0) is None


def test_the_memory_of_a_board_is_nobody_elses():
    """Also once the process that hands it out refers to it no more."""
    start = hand_board(Namespace(server=1), CONTEXT, 2).balance_board._memory
    size, start = len(start), addressof(start)
    gc.collect()
    for _ in range(20):
        other = CONTEXT.RawArray("b", size)
        assert not start - size < addressof(other) < start + size
        del other


def serve(memory, server, rounds):
    """An API server: requests come and go, and none is left."""
    rng = random.Random(server)
    board = SharedBoard(memory, server)
    dispatch = Dispatch(RANKS, 8, TO_COMPUTE, board, 500, 512)
    open_: list[int] = []
    for request in range(rounds):
        prompt = keys(rng.randrange(20), rng.randrange(1, 60))
        rank = dispatch.choose(prompt)
        dispatch.sent(request, rank, 512 * len(prompt), prompt)
        open_.append(request)
        rng.shuffle(open_)
        dispatch.answered(open_[0], 1)
        while len(open_) > 10 + request % 7:
            dispatch.ended(open_.pop())
    known = {key for name in range(20) for key in keys(name, 60)}
    found = [key for held in dispatch.memories for key in held._keys]
    torn = [key for key in found if key not in known]
    assert len(torn) <= 5, "what was read half-written is believed by nobody's prompt"
    for request in open_:
        dispatch.ended(request)


def test_servers_that_hammer_the_board_leave_no_count_behind():
    """Each at once with the others; what one of them reads is never below zero by
    more than what moves meanwhile, and at the end all of it is zero."""
    memory = create_board(CONTEXT, SERVERS)
    processes = [
        CONTEXT.Process(target=serve, args=(memory, server, 1500))
        for server in range(1, SERVERS)
    ]
    for process in processes:
        process.start()
    watcher = SharedBoard(memory, 0)
    seen = 0
    while any(process.is_alive() for process in processes):
        tokens, requests = watcher.totals(RANKS)
        assert min(requests) >= 0
        assert sum(requests) <= (SERVERS - 1) * 20
        assert min(tokens) >= 0
        assert sum(tokens) <= (SERVERS - 1) * 20 * 60 * 512
        seen += sum(requests) > 0
        time.sleep(0.001)
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * (SERVERS - 1)
    assert seen > 10
    assert watcher.totals(RANKS) == [[0] * RANKS] * 2
