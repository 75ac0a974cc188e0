# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Shows what a rank does, and names ranks that do not answer.

Gloo says that a collective call failed, not whose fault it was, and a rank that waits
in a collective call of the model is in nobody's time-out. So a thread of each rank
writes a heartbeat to the group's store twice per second, and reads the others'; the
step itself pays nothing.

In a server that hangs nobody may answer. So another thread writes what the rank does
into a file in memory, which `vllm-balance doctor` finds among the open files of the
process (`/proc/PID/fd`), also when the process was stopped, and which goes with it:

    {"rank": 1, "size": 4, "doing": "exchange", "wave": 3, "step": 120,
     "since": 5100.25, "seen": 5130.50,
     "stack": "receive(rank/group.py:198) < _receive(…)"}

Its times are of `time.monotonic`, which is the same in all processes of a machine.
"""

import contextlib
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch.distributed as dist
from vllm.logger import init_logger
from vllm.utils.system_utils import kill_process_tree

logger = init_logger(__name__)

FILE = "vllm-balance status"

LONG_S = 2.0
"""Seconds after which a rank shows its stack: what lasts longer may be a hang."""

PATIENCE = 4
"""A rank is silent if its heartbeat is the same in so many readings in a row. Readings,
not seconds: a slow store slows the reader, too."""

LONG_SILENCE = 10
"""Readings in half a time-out; then the watch ends a process that waits for it."""

_LONGEST_PERIOD_S = 0.5
_PERIODS_PER_TIMEOUT = 2 * LONG_SILENCE
_FRAMES = 8


class RankStatus(NamedTuple):
    """What a rank is doing: `exchange`, `model` for all between two, or `idle`."""

    doing: str
    wave: int
    step: int
    """The last step that has ended."""
    since: float
    """When it began to do this, in seconds of `time.monotonic`."""

    def lasts(self) -> float:
        return time.monotonic() - self.since

    def text(self, rank: int, size: int) -> str:
        stack = _main_stack() if self.lasts() > LONG_S else ""
        status = {"rank": rank, "size": size, **self._asdict()}
        return json.dumps({**status, "seen": time.monotonic(), "stack": stack})


class Heartbeats:
    """What the ranks of a group say in its store: how far they are, and that they live.

    The store is in the process of rank 0. A call of it may never return where that was
    stopped, so a thread of its own makes them.
    """

    def __init__(
        self, store: dist.Store, rank: int, size: int, status: Callable[[], RankStatus]
    ) -> None:
        self._store, self._status = store, status
        self._rank, self._size = rank, size
        self._unanswered = 0
        self._beats, self._repeats = [""] * size, [0] * size
        self._ended = threading.Event()

    def start(self, period: float) -> None:
        """Says from now on, once in so many seconds, how far this rank is."""
        threading.Thread(target=self._talk, args=(period,), daemon=True).start()

    def tick(self) -> None:
        """A period has passed, in which the store has answered or not."""
        self._unanswered += 1

    def end(self) -> None:
        """This rank says no more; the others find it silent."""
        self._ended.set()

    def _talk(self, period: float) -> None:
        ranks = [f"{rank}" for rank in range(self._size)]
        for count in itertools.count():
            _, wave, step, _ = self._status()
            with contextlib.suppress(RuntimeError):  # rank 0 has ended
                self._store.set(ranks[self._rank], f"{count} {wave} {step}")
                if self._store.check(ranks):  # multi_get would wait for one
                    self.hear([each.decode() for each in self._store.multi_get(ranks)])
                self._unanswered = 0
            if self._ended.wait(period):
                return

    def hear(self, beats: Sequence[str]) -> None:
        for rank, (before, now) in enumerate(zip(self._beats, beats, strict=True)):
            self._repeats[rank] = self._repeats[rank] + 1 if before == now else 0
        self._beats = [*beats]

    def silent(self, periods: int = PATIENCE) -> list[int]:
        """Ranks without a new heartbeat for so long, and rank 0 without an answer."""
        counts = [max(self._repeats[0], self._unanswered), *self._repeats[1:]]
        return [r for r, n in enumerate(counts) if n >= periods and r != self._rank]

    def blame(self) -> str:
        """A clause that names who keeps this rank waiting, if any."""
        if who := self.silent():
            return f"no answer from {_names(who)} (process ended or stopped)"
        if who := self._behind():
            return f"{_names(who)} not there yet (the process is alive)"
        return "all other ranks answer"

    def _behind(self) -> list[int]:
        _, *here, _ = self._status()
        places = [[int(n) for n in beat.split()[1:]] for beat in self._beats]
        return [rank for rank, place in enumerate(places) if place and place < here]


def _names(ranks: Sequence[int]) -> str:
    several = "s" if len(ranks) > 1 else ""
    return f"rank{several} {', '.join(map(str, ranks))}"


class RankWatch:
    """Watches the other ranks of one group, and shows what this one does.

    One thread writes the status file, and ends the process if it is stuck in a call
    that has no time-out of its own while another rank is silent.
    """

    def __init__(self, timeout: float, rank: int = 0, size: int = 1) -> None:
        """If a rank does not answer, a step may take `timeout` seconds.

        Until there is a group, this is `rank` of `size`.
        """
        self._timeout = timeout
        self._period = min(_LONGEST_PERIOD_S, timeout / _PERIODS_PER_TIMEOUT)
        self._rank, self._size = rank, size
        self._beats: Heartbeats | None = None
        self.show("idle", 0, 0)

    def start(self, in_wave: Callable[[], bool] = lambda: False) -> None:
        """Starts the thread, which asks whether the rank is in a wave."""
        self._in_wave = in_wave
        threading.Thread(target=self._watch, daemon=True).start()

    def join(self, group: dist.ProcessGroup, tell_clients: Callable[[], None]) -> None:
        """Watches this group from now on.

        The thread calls `tell_clients` when this process is about to be ended.
        """
        self.leave()
        self._rank, self._size = group.rank(), group.size()
        self._tell_clients = tell_clients
        # A connection of its own: nobody else's call may delay the heartbeats.
        store = dist.PrefixStore("balance", group.get_group_store()).clone()
        beats = Heartbeats(store, self._rank, self._size, lambda: self.status)
        beats.start(self._period)
        self._beats = beats

    def show(self, doing: str, wave: int, step: int) -> None:
        """What this rank begins to do, as in `RankStatus`.

        In `model` it depends on other ranks; the exchange has a time-out of its own.
        """
        self.status = RankStatus(doing, wave, step, time.monotonic())

    @property
    def in_step(self) -> bool:
        """Whether this rank is in a step that depends on the ranks of its group."""
        return self._beats is not None and self.status.doing == "model"

    def blame(self) -> str:
        """A clause that names, in four seconds at most, who keeps this rank waiting."""
        beats = self._beats
        assert beats is not None
        end = time.monotonic() + 2 * PATIENCE * self._period
        while not beats.silent() and time.monotonic() < end:
            time.sleep(self._period)
        return beats.blame()

    def leave(self, after_error: bool = False) -> None:
        """Leaves the group.

        After an error others may still look for who is silent, in the store, which
        goes with rank 0.
        """
        beats, self._beats = self._beats, None
        if beats is None:
            return
        if after_error and self._rank == 0:
            time.sleep(PATIENCE * self._period)
        beats.end()

    def _watch(self) -> None:
        file = _open_file()
        while True:
            with contextlib.suppress(OSError):  # only the doctor misses it
                if file is not None:
                    text = self.status.text(self._rank, self._size).encode()
                    os.ftruncate(file, os.pwrite(file, text, 0))
            self._look()
            time.sleep(self._period)

    def _look(self) -> None:
        """Ends the process if it is stuck while another rank is silent."""
        status, beats = self.status, self._beats
        if status.doing == "idle" and self._in_wave():
            # The first step without a request: nothing else tells that it begins.
            self.show("model", status.wave, status.step)
        elif beats is not None:
            beats.tick()
            # While this process is stopped, none is counted.
            is_silent = beats.silent(LONG_SILENCE)
            is_stuck = status.doing == "model" and status.lasts() > self._timeout
            if is_stuck and is_silent:
                self._end_process(beats.blame())

    def _end_process(self, blame: str) -> None:
        self.leave(after_error=True)
        logger.error(
            "Data parallel balance: %s, and rank %d cannot finish its step without it "
            "after %g s. Ending rank %d.",
            blame,
            self._rank,
            self._timeout,
            self._rank,
        )
        try:
            self._tell_clients()
        finally:
            kill_process_tree(os.getpid())


def _open_file() -> int | None:
    try:
        return os.memfd_create(FILE)
    except OSError:  # hardened hosts refuse it, and a rank can do without
        return None


def _main_stack() -> str:
    """The innermost functions of the main thread, each with its file and line."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    frames: list[str] = []
    while frame is not None and len(frames) < _FRAMES:
        code = frame.f_code
        file = "/".join(code.co_filename.split("/")[-2:])
        frames.append(f"{code.co_name}({file}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(frames)
