"""A rank that dies or stops is named in time; the others end, clients get errors."""

import os
import signal
import time

import psutil
import pytest
from vllm.distributed.utils import stateless_init_torch_distributed_process_group

from dp_loop import LoopEngine
from dp_ranks import HOW, Ranks, loop_arguments
from hostile_clients import rank_pids, statuses_after
from vllm_server import Server, free_port, is_alive

TIMEOUT_S = 8
"""Half of it is longer than any pause that a busy machine makes."""
END_S = 120
FAILS_AT, SYNC_AT = 100, 32 * 4 - 1
"""Steps of the wave; in the second one the ranks meet in upstream's finish-sync."""


def failing(victim, step, fail):
    """An engine whose rank `victim` fails in the middle of that step's model."""

    class Failing(LoopEngine):
        def _record(self, output):
            super()._record(output)
            if self.dp_rank == victim and self.step_counter == step:
                fail()

    return Failing


def signal_itself(number):
    return lambda: os.kill(os.getpid(), number)


def start(model, engine_class, log=None, how="sync"):
    arguments = loop_arguments(
        model,
        data_parallel_balance="adaptive",
        cpu_distributed_timeout_seconds=TIMEOUT_S,
        additional_config={"kv_blocks": 100, "log": log and str(log)},
        **HOW[how],
    )
    ranks = Ranks(3, engine_class, **arguments)
    ranks.running = True  # no start of a wave: each begins with its own request
    for number in range(12):
        ranks.submit(number % 3, f"request-{number}", 10, 200)
    return ranks


def fail():
    raise ValueError("out of memory")


ENDED, LATE = "(process ended or stopped)", "not there yet (the process is alive)"


@pytest.mark.parametrize(
    ("end", "victim", "how", "said"),
    [
        (signal_itself(signal.SIGKILL), 0, "sync", ENDED),
        (signal_itself(signal.SIGSTOP), 0, "several hosts", ENDED),
        (fail, 1, "sync", ENDED),
        (lambda: time.sleep(END_S), 1, "sync", LATE),
    ],
    ids=["killed", "stopped", "an error of its own", "late"],
)
def test_the_other_ranks_name_the_one_that_does_not_answer(
    moe_model, end, victim, how, said
):
    """Rank 0 keeps the group's store; the others do not."""
    fails = failing(victim, FAILS_AT, end)
    with start(moe_model, fails, how=how) as ranks:
        errors = ranks.deaths(2 + (end is fail), timeout=END_S)
    assert "out of memory" in errors.pop(victim, "out of memory")
    assert sorted(errors) == sorted({0, 1, 2} - {victim})
    for error in errors.values():
        assert f"rank {victim} {said}" in error
        # Between hosts its row of this step may have been sent before.
        steps = [FAILS_AT + 1, FAILS_AT + 2][: 1 + (how == "several hosts")]
        failed = [f"the exchange after step {step} of wave 0 failed" for step in steps]
        assert any(each in error for each in failed)


def test_the_rank_is_named_wherever_the_others_wait(moe_model, tmp_path):
    """Here they wait in upstream's all-reduce; it could be one of the model.

    The first that ends names it; the other does, too, unless it finds out that the
    first has gone before it has asked.
    """
    log = tmp_path / "log"
    with start(
        moe_model, failing(2, SYNC_AT, signal_itself(signal.SIGSTOP)), log
    ) as ranks:
        for process in ranks.processes[:2]:
            process.join(END_S)
            assert process.exitcode is not None
    found = log.read_text().count("balance: no answer from rank 2 (process ended")
    assert found in (1, 2), log.read_text()


def test_what_is_slow_and_what_nobody_waits_for_is_no_error(moe_model):
    """As while kernels are compiled; and a rank that stops between two waves."""

    class Slow(LoopEngine):
        def _record(self, output):
            super()._record(output)
            if self.step_counter == FAILS_AT:
                time.sleep(1.5 * TIMEOUT_S)

    with start(moe_model, Slow) as ranks:
        ranks.drain()
        ranks.call("is_scheduler_paused")  # rank 0 has told the end; all are there
        stopped = psutil.Process(ranks.processes[1].pid)
        stopped.suspend()
        time.sleep(1.5 * TIMEOUT_S)
        stopped.resume()
        ranks.submit(1, "late", 10, 20)
        ranks.drain()
        assert [leftover for _, leftover in ranks.stop()] == [0, 0, 0]


def test_a_new_group_of_ranks_is_watched_and_the_old_one_is_not(moe_model):
    """As elastic expert parallelism does it: rank 2 goes, the others form a group."""
    port = free_port()

    class Shrinking(LoopEngine):
        def _has_global_unfinished_reqs(self, local_unfinished):
            if self.step_counter == FAILS_AT:
                if self.dp_rank == 2:
                    raise SystemExit
                self.dp_group = stateless_init_torch_distributed_process_group(
                    "127.0.0.1", port, self.dp_rank, 2, "gloo"
                )
            if self.step_counter == FAILS_AT + 10:
                time.sleep(1.5 * TIMEOUT_S)  # rank 2 has long gone
            if self.step_counter == FAILS_AT + 20 and self.dp_rank == 1:
                signal_itself(signal.SIGKILL)()
            return super()._has_global_unfinished_reqs(local_unfinished)

    with start(moe_model, Shrinking) as ranks:
        (error,) = ranks.deaths(1, timeout=END_S).values()
    assert "balance: no answer from rank 1 (process ended" in error
    assert f"the exchange after step {FAILS_AT + 21} of wave 0 failed" in error


@pytest.mark.slow
@pytest.mark.parametrize(
    "signals",
    [
        pytest.param({1: signal.SIGSTOP}, id="stopped"),
        # As where a collective call of the model has no time-out: nobody says why.
        pytest.param(
            {0: signal.SIGSTOP, 2: signal.SIGSTOP, 1: signal.SIGKILL},
            id="killed while the others are stuck",
            marks=pytest.mark.ci,
        ),
    ],
)
def test_a_server_that_loses_a_rank_answers_with_errors(moe_model, tmp_path, signals):
    """The other ranks wait in the model, in a call that has no time-out in sight."""
    options = ("-dp", "3", "--enable-expert-parallel", "--max-num-seqs", "4")
    environment = {"VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(TIMEOUT_S)}
    balance = ("--data-parallel-balance", "adaptive")
    with Server(
        tmp_path, moe_model, *options, *balance, environment=environment
    ) as server:
        pids = rank_pids(server)
        assert sorted(pids) == [0, 1, 2]
        engines = [psutil.Process(pid) for pid in pids.values()]

        def lose():
            for rank, number in signals.items():
                os.kill(pids[rank], number)

        statuses = statuses_after(server, lose, clients=24, tokens=4000)
        assert all(status >= 500 for status in statuses), statuses
        psutil.wait_procs(engines, END_S)
        assert server.wait(END_S) == 1, "nobody asked it to end"
        log = server.log.read_text()
    if signals.keys() == {1}:
        assert "no answer from rank 1 (process ended or stopped)" in log
    assert not any(map(is_alive, pids.values()))
