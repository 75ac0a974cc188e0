# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Shows what a rank does, names ranks that do not answer, and ends orphans.

Gloo says that a collective call failed, not whose fault it was, and a rank that waits
in a collective call of the model is in nobody's time-out. So one thread of each rank
writes a heartbeat to the group's store twice per second. Nobody reads them until a step
takes long or fails; the step itself pays nothing.

In a server that hangs nobody may answer. So the thread also writes what the rank does
into a file in memory, which `vllm-balance doctor` finds among the open files of the
process (`/proc/PID/fd`), also when the process was stopped, and which goes with it:

    {"rank": 1, "size": 4, "doing": "exchange", "wave": 3, "step": 120,
     "since": 5100.25, "seen": 5130.50,
     "stack": "wait(balance/group.py:80) < gather(…)"}

Its times are of `time.monotonic`, which is the same in all processes of a machine.
"""

import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from functools import cache
from types import FrameType
from typing import NamedTuple

import torch.distributed as dist
from vllm.logger import init_logger
from vllm.utils.system_utils import kill_process_tree

logger = init_logger(__name__)

FILE = "vllm-balance status"

LONG_S = 2.0
"""What lasts longer may be a hang: then a rank shows its stack, and reads the others'
heartbeats."""

PATIENCE = 4
"""A rank is silent if its heartbeat is the same in as many readings that follow one
another: a store that is slow is so for the reader, too."""

LEFT, FAILED = "left", "failed"
"""The last heartbeat of a rank that ends, and of one that ends by its own fault."""

_LONGEST_PERIOD_S = 0.5
_PERIODS_PER_TIMEOUT = 20
_FRAMES = 8


class Status(NamedTuple):
    """What a rank does."""

    doing: str
    """`model` for all between two exchanges, `exchange`, or `idle`."""
    wave: int
    step: int
    """The last one that has ended."""
    since: float
    """Seconds of `time.monotonic` when it began."""

    def lasts(self) -> float:
        """Seconds for which the rank has done it."""
        return time.monotonic() - self.since

    def text(self, rank: int, size: int) -> str:
        """What the status file says."""
        stack = _main_stack() if self.lasts() > LONG_S else ""
        found = {"rank": rank, "size": size, **self._asdict()}
        return json.dumps({**found, "seen": time.monotonic(), "stack": stack})


class Heartbeats:
    """What the ranks of a group say in its store: how far they are, and that they live.

    The store lives in the process of rank 0, and if that was stopped, a call may never
    return. So each call has a thread of its own, and nobody waits for it for long.
    """

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.num_read = 0
        self._store = store
        self._lock = threading.Lock()
        self._call: threading.Thread | None = None
        self._unanswered = 0
        self._count = 0
        self._last: str | None = None
        self._said: dict[int, str] = {}
        self._same = Counter[int]()

    def beat(self, status: Status, is_reading: bool) -> None:
        """Called once a period: says how far this rank is, if the store answers."""
        self._unanswered += 1
        if self._call is None or not self._call.is_alive():
            self._count += 1
            said = f"{self._count} {status.wave} {status.step}"
            self._call = threading.Thread(
                target=self._talk, args=(said, is_reading), daemon=True
            )
            self._call.start()

    def leave(self, last: str, seconds: float) -> None:
        """Says `LEFT` or `FAILED`, if the store answers in that time."""
        self._last = last
        call = threading.Thread(target=self._talk, args=(last, False), daemon=True)
        call.start()
        call.join(seconds)

    def _talk(self, said: str, is_reading: bool) -> None:
        try:
            with self._lock:  # after the last word there is no other
                self._store.set(f"{self.rank}", self._last or said)
            if is_reading:
                self.hear(self._read())
            self._unanswered = 0
        except RuntimeError:  # rank 0 has ended
            return

    def _read(self) -> dict[int, str]:
        keys = [f"{rank}" for rank in range(self.size)]
        if not self._store.check(keys):  # for one that is missing, multi_get would wait
            keys = [key for key in keys if self._store.check([key])]
        values = self._store.multi_get(keys) if keys else []
        return {
            int(key): value.decode() for key, value in zip(keys, values, strict=True)
        }

    def hear(self, said: Mapping[int, str]) -> None:
        """Notes what the store has: the last heartbeat of each rank that has one."""
        for rank in range(self.size):
            is_same = rank in self._said and self._said[rank] == said.get(rank, "")
            self._same[rank] = self._same[rank] + 1 if is_same else 0
            self._said[rank] = said.get(rank, "")
        self.num_read += 1

    def silent(self, periods: int = PATIENCE) -> list[int]:
        """The ranks that said nothing new for so long, or rank 0, if the store did."""
        silent = [rank for rank, count in self._same.items() if count >= periods]
        if self.rank != 0 and self._unanswered >= periods:
            silent = [0]
        gone = {self.rank, *self.that_said(LEFT, FAILED)}
        return [rank for rank in silent if rank not in gone]

    def that_said(self, *words: str) -> list[int]:
        """The ranks whose last heartbeat is one of these."""
        return [rank for rank, said in self._said.items() if said in words]

    def blame(self, status: Status) -> str:
        """A clause that names who keeps this rank waiting; empty if all answer."""
        reasons = {
            "no answer from {} (process ended or stopped)": self.silent(),
            "{} failed with an error of its own": self.that_said(FAILED),
            "{} not there yet (the process is alive)": self._behind(status),
            "{} left": self.that_said(LEFT),
        }
        found = [words.format(_names(who)) for words, who in reasons.items() if who]
        return found[0] if found else ""

    def _behind(self, status: Status) -> list[int]:
        here = [status.wave, status.step]
        words = {rank: said.split()[1:] for rank, said in self._said.items()}
        return [rank for rank, at in words.items() if at and [*map(int, at)] < here]


class RankWatch:
    """Watches the other ranks of one group, and shows them that this one lives.

    One thread writes the heartbeats and the status file, ends the process with its
    parent, and ends it if it is stuck in a call that has no time-out of its own while
    another rank is silent. It waits for nobody.
    """

    def __init__(self, timeout: float, rank: int = 0, size: int = 1) -> None:
        """Starts nothing.

        Args:
            timeout: seconds that a step may take if a rank does not answer.
            rank: data parallel rank, until there is a group.
            size: number of the ranks.
        """
        self._timeout = timeout
        self._period = min(_LONGEST_PERIOD_S, timeout / _PERIODS_PER_TIMEOUT)
        self._rank, self._size = rank, size
        self._beats: Heartbeats | None = None
        self._is_asked = self._is_started = False
        self.show("idle", 0, 0)

    def start(self) -> None:
        """Starts the thread, once."""
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=self._watch, daemon=True).start()

    def join(self, group: dist.ProcessGroup, tell_clients: Callable[[], None]) -> None:
        """Watches this group from now on.

        Args:
            group: the data parallel process group.
            tell_clients: tells the front-end that this engine is dead. Called by the
                thread, when this process is about to be ended.
        """
        self.leave()
        self._rank, self._size = group.rank(), group.size()
        self._tell_clients = tell_clients
        # A connection of its own: nobody else's call may delay the heartbeats.
        store = dist.PrefixStore("balance", group.get_group_store()).clone()
        self._beats = Heartbeats(store, self._rank, self._size)
        self.start()

    def show(self, doing: str, wave: int, step: int) -> None:
        """What this rank begins to do, as in `Status`.

        In `model` it depends on other ranks; the exchange has a time-out of its own.
        """
        self.status = Status(doing, wave, step, time.monotonic())

    @property
    def in_step(self) -> bool:
        """Whether this rank is in a step that depends on the ranks of its group."""
        return self._beats is not None and self.status.doing == "model"

    def blame(self) -> str:
        """Asks the store for up to six seconds who keeps this rank waiting.

        Returns:
            A clause that names them; empty if all other ranks answer.
        """
        beats = self._beats
        if beats is None:
            return ""
        wanted = beats.num_read + PATIENCE + 1
        end = time.monotonic() + 3 * PATIENCE * self._period
        self._is_asked = True
        while beats.num_read < wanted and time.monotonic() < end:
            time.sleep(self._period / 4)
        return beats.blame(self.status)

    def leave(self, blame: str | None = None) -> None:
        """Leaves the group.

        Args:
            blame: after an error, who was to blame; the others read whether it is this
                rank. Rank 0, with which the store goes, waits until they may have.
        """
        beats, self._beats, self._is_asked = self._beats, None, False
        if beats is None:
            return
        seconds = PATIENCE * self._period
        beats.leave(FAILED if blame == "" else LEFT, seconds)
        if blame is not None and self._rank == 0:
            time.sleep(seconds)

    def _watch(self) -> None:
        """Body of the thread."""
        file = _open_file()
        while True:
            end_if_orphaned()
            status, beats = self.status, self._beats
            if file is not None:
                text = status.text(self._rank, self._size).encode()
                os.ftruncate(file, os.pwrite(file, text, 0))
            if beats is not None:
                is_late = status.doing != "idle" and status.lasts() > LONG_S
                beats.beat(status, self._is_asked or is_late)
                # For half a time-out; while this process is stopped, none is counted.
                is_silent = beats.silent(_PERIODS_PER_TIMEOUT // 2)
                is_stuck = status.doing == "model" and status.lasts() > self._timeout
                if is_stuck and is_silent:
                    self._end_process(beats.blame(status))
            time.sleep(self._period)

    def _end_process(self, blame: str) -> None:
        self.leave(blame)
        logger.error(
            "Data parallel balance: %s, and rank %d cannot finish its step without it "
            "after %g s. Ending rank %d.",
            *(blame, self._rank, self._timeout, self._rank),
        )
        try:
            self._tell_clients()
        finally:
            kill_process_tree(os.getpid())


def _open_file() -> int | None:
    try:
        return os.memfd_create(FILE)
    except (AttributeError, OSError):  # not Linux, or not allowed
        return None


def _main_stack() -> str:
    """The innermost functions of the main thread, each with its file and line."""
    main = threading.main_thread().ident or 0
    frame: FrameType | None = sys._current_frames().get(main)
    found: list[str] = []
    while frame is not None and len(found) < _FRAMES:
        code = frame.f_code
        file = "/".join(code.co_filename.split("/")[-2:])
        found.append(f"{code.co_name}({file}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(found)


def _names(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"


def parent_is_gone() -> bool:
    """Whether the process that started this one has ended.

    False in a process that `multiprocessing` did not start. No pipe or signal tells it
    surely: processes that the parent forks later hold the write ends of the earlier
    ones' pipes, and the kernel's signal on a parent's death means the thread that
    forked.
    """
    parent = multiprocessing.parent_process()
    return parent is not None and os.getppid() != parent.pid


def end_if_orphaned() -> None:
    """Ends this process, and those that it started, if its parent has ended.

    A front-end that is killed tells nobody. Its ranks and its coordinator would live
    on, with their memory, and forked ones with the socket on which clients connect.
    """
    if parent_is_gone():
        logger.error(
            "Data parallel balance: the process that started %s (pid %d) has ended "
            "without stopping it. Ending it.",
            *(multiprocessing.current_process().name, os.getpid()),
        )
        kill_process_tree(os.getpid())


def end_with_parent() -> None:
    """From now on this process ends when its parent has ended, also if it is killed."""

    def watch() -> None:
        while True:
            end_if_orphaned()
            time.sleep(_LONGEST_PERIOD_S)

    if multiprocessing.parent_process() is not None:
        threading.Thread(target=watch, daemon=True).start()


@cache
def untie_forked_signals() -> None:
    """Makes processes that are forked from now on forget this one's event loop.

    It hears of signals through a descriptor, which `fork` copies. When a rank has died,
    the front-end ends the other engines and the coordinator by SIGTERM; with the copy
    it takes each of these for a SIGTERM of its own, stops listening to its engines, and
    waits for clients who wait for answers that nobody gives any more.
    """
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
