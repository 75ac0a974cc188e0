# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Shows what this rank does, and names the data parallel ranks that do not answer.

Gloo says that a collective call failed, not whose fault it was, and a rank that
waits in a collective call of the model is in nobody's time-out. So every rank writes a
heartbeat to the group's store twice per second. Nobody reads them until a step takes
long or fails; the step itself pays nothing.
"""

import math
import os
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

import torch.distributed as dist
from vllm.logger import init_logger
from vllm.utils.system_utils import kill_process_tree
from vllm.v1.core.sched.balance.group.heartbeats import (
    FAILED,
    LEFT,
    PATIENCE_BEATS,
    Heartbeats,
)
from vllm.v1.core.sched.balance.group.status_file import (
    LONG_S,
    Status,
    StatusFile,
    text_of,
)
from vllm.v1.core.sched.balance.parent_watch import end_if_orphaned

logger = init_logger(__name__)

_BEATS_PER_TIMEOUT = 20
_LONGEST_PERIOD_S = 0.5

_RANKS_PER_SECOND = 50
"""How many heartbeats a rank reads, at most, while a step takes long."""


class Blame(NamedTuple):
    """Who keeps this rank waiting."""

    reason: str
    """A clause that names them; empty if all other ranks answer."""
    silent: list[int]
    """The ranks that do not answer."""

    def __str__(self) -> str:
        return self.reason or "all other ranks answer"


class RankWatch:
    """Watches the other ranks of one group, and shows them that this one lives.

    One thread of the process writes the status file, ends the process with its parent,
    and ends it if it is stuck in a call that has no time-out of its own while another
    rank is silent. It waits for nobody. Each group has a second one, which alone calls
    the group's store (`_StoreThread`).
    """

    def __init__(self, timeout: float, rank: int = 0, size: int = 1) -> None:
        """Starts nothing.

        Args:
            timeout: seconds that a step may take if a rank does not answer.
            rank: data parallel rank, until there is a group.
            size: number of the ranks.
        """
        self._timeout = timeout
        self._period = min(_LONGEST_PERIOD_S, timeout / _BEATS_PER_TIMEOUT)
        self._rank, self._size = rank, size
        self._store: _StoreThread | None = None
        self._is_started = False
        self.show("idle", 0, 0)

    def start(self) -> None:
        """Starts the thread of the process, once."""
        if not self._is_started:
            self._is_started = True
            threading.Thread(target=self._watch, daemon=True).start()

    def join(self, group: dist.ProcessGroup, tell_clients: Callable[[], None]) -> None:
        """Watches this group from now on; starts the threads.

        Args:
            group: the data parallel process group.
            tell_clients: tells the front-end that this engine is dead. Called by a
                thread of the watch, when this process is about to be ended.
        """
        self.leave()
        self.start()
        self._rank, self._size = group.rank(), group.size()
        self._tell_clients = tell_clients
        self._store = _StoreThread(group, self._period, lambda: self.status)
        self._store.start()

    def show(self, doing: str, wave: int, step: int) -> None:
        """What this rank begins to do, as in `Status`.

        In `model` it depends on other ranks; the exchange has a time-out of its own.
        """
        self.status = Status(doing, wave, step, time.monotonic())

    @property
    def in_step(self) -> bool:
        """Whether this rank is in a step that depends on the ranks of its group."""
        return self._store is not None and self.status.doing == "model"

    def blame(self) -> Blame:
        """Asks the store for up to six seconds who keeps this rank waiting."""
        store = self._store
        if store is None:
            return Blame("", [])
        # A store that has answered once may only be slow.
        is_there = store.ask_twice()
        silent = store.heartbeats.silent(math.inf) if is_there else [0]
        return self._blame(store, silent)

    def leave(self, blame: Blame | None = None) -> None:
        """Leaves the group.

        Args:
            blame: why, after an error; the others read whether it is this rank's. Rank
                0, with which the store goes, waits until they have left, too.
        """
        store, self._store = self._store, None
        if store is None:
            return
        if blame is None:
            store.end(LEFT)
        else:
            others = set(range(1, self._size)) - set(blame.silent)
            last = LEFT if blame.reason else FAILED
            store.end(last, frozenset(others if self._rank == 0 else ()))

    def _blame(self, store: "_StoreThread", silent: list[int]) -> Blame:
        said = store.heartbeats
        reasons = {
            "no answer from {} (process ended or stopped)": silent,
            "{} failed with an error of its own": said.that_said(FAILED),
            "{} not there yet (the process is alive)": said.behind(
                self.status.position
            ),
            "{} left": said.that_said(LEFT),
        }
        found = [words.format(_names(who)) for words, who in reasons.items() if who]
        return Blame(found[0] if found else "", silent)

    def _watch(self) -> None:
        """Body of the thread of the process."""
        file, suspects = StatusFile(), list[int]()
        while True:
            end_if_orphaned()
            file.write(self.text())
            # Twice in a row: this process may have been stopped itself.
            before, suspects = suspects, self._suspects()
            store = self._store
            if store is not None and suspects and suspects == before:
                blame = self._blame(store, suspects)
                self.leave(blame)
                self._end_process(blame.reason)
            time.sleep(self._period)

    def text(self) -> str:
        """What the status file says."""
        status, store = self.status, self._store
        others: dict[str, tuple[tuple[int, int] | None, float]] = {}
        if store is not None and status.is_late():
            others = store.heartbeats.late(status.position, time.monotonic())
            if (called := store.called) is not None:
                others["store"] = None, called
        return text_of(status, self._rank, self._size, others)

    def _suspects(self) -> list[int]:
        """Ranks without which a step has lasted too long, silent for half of that."""
        store, status = self._store, self.status
        if store is None or status.doing != "model" or status.lasts() < self._timeout:
            return []
        since = time.monotonic() - self._timeout / 2
        waits = (called := store.called) is not None and called < since
        if self._rank != 0 and (waits or store.is_gone):
            return [0]
        return store.heartbeats.silent(since)

    def _end_process(self, reason: str) -> None:
        logger.error(
            "Data parallel balance: %s, and rank %d cannot finish its step without it "
            "after %g s. Ending rank %d.",
            reason,
            self._rank,
            self._timeout,
            self._rank,
        )
        try:
            self._tell_clients()
        finally:
            kill_process_tree(os.getpid())


class _StoreThread(threading.Thread):
    """Writes the heartbeats of a rank to the group's store, and reads the others'.

    The store lives in the process of rank 0, and if that was stopped, a call may never
    return: then this thread alone waits.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        period: float,
        status: Callable[[], Status],
    ) -> None:
        super().__init__(daemon=True)
        self._rank, self._size = group.rank(), group.size()
        self._period, self._status = period, status
        # A connection of its own: nobody else's call may delay the heartbeats.
        self._store = dist.PrefixStore("balance", group.get_group_store()).clone()
        # The less often the more ranks do, for they share a store.
        seconds = max(LONG_S, self._size / _RANKS_PER_SECOND)
        self._late_pause = int(seconds / period)
        self._last, self._others = LEFT, frozenset[int]()
        self._ended = threading.Event()
        self._asked, self._num_read = 0.0, 0
        self.heartbeats = Heartbeats(self._rank, self._size)
        self.called: float | None = None
        """Since when the store has not answered a call."""
        self.is_gone = False
        """Whether it could not be reached: rank 0 has ended."""

    def ask_twice(self) -> bool:
        """Waits for two answers, or until one takes too long.

        Returns:
            Whether there was one; this rank itself is asked if it is rank 0.
        """
        self._asked = time.monotonic()
        patience, before = PATIENCE_BEATS * self._period, self._num_read
        for number in (1, 2):
            end = time.monotonic() + number * patience
            while self._num_read < before + number and not self.is_gone:
                if time.monotonic() > end:
                    break
                time.sleep(self._period / 4)
        return self._rank == 0 or self._num_read > before

    def end(self, last: str, others: frozenset[int] = frozenset()) -> None:
        """Ends the thread, with this as the last heartbeat.

        Args:
            last: `LEFT` or `FAILED`.
            others: ranks that may first find that out, for a while.
        """
        self._last, self._others = last, others
        self._ended.set()
        self.join(PATIENCE_BEATS * (2 if others else 1) * self._period)

    def run(self) -> None:
        beats, last_read, read_at = 0, 0, 0.0
        while True:
            status = self._status()
            self._call(self._write, "{} {} {}".format(beats, *status.position))
            asked = self._asked
            # Once asked, until the rank does something else.
            pause = PATIENCE_BEATS if asked > status.since else self._late_pause
            is_wanted = asked > status.since or status.is_late()
            if asked > read_at or (is_wanted and beats >= last_read + pause):
                last_read, read_at = beats, time.monotonic()
                self._call(self._read, beats)
            if self._ended.wait(self._period):
                break
            beats += 1
        self._call(self._write, self._last)
        for _ in range(PATIENCE_BEATS):
            if self._others <= {*self.heartbeats.that_said(LEFT, FAILED)}:
                break
            self._call(self._read, beats)
            time.sleep(self._period)

    def _call(self, call: Callable[..., None], *arguments: object) -> None:
        self.called = time.monotonic()
        try:
            call(*arguments)
            self.is_gone = False
        except RuntimeError:
            self.is_gone = True
        self.called = None

    def _write(self, heartbeat: str) -> None:
        self._store.set(f"{self._rank}", heartbeat)

    def _read(self, beats: int) -> None:
        keys = [f"{rank}" for rank in range(self._size)]
        if not self._store.check(keys):  # for one that is missing, multi_get would wait
            keys = [key for key in keys if self._store.check([key])]
        values = self._store.multi_get(keys) if keys else []
        said = {
            int(key): value.decode() for key, value in zip(keys, values, strict=True)
        }
        self.heartbeats.hear(said, beats, time.monotonic())
        self._num_read += 1


def _names(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
