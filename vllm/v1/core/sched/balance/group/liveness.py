# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Names the data parallel ranks that do not answer.

Gloo says that a collective call failed, not whose fault it was, and a rank that
waits in a collective call of the model is in nobody's time-out. So a thread of every
rank writes a heartbeat to the group's store twice per second. Nobody reads them until
a step takes too long or fails; the step itself pays nothing.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue

import torch.distributed as dist
from vllm.logger import init_logger
from vllm.utils.system_utils import kill_process_tree
from vllm.v1.core.sched.balance.group.placard import LONG_S, Placard

logger = init_logger(__name__)

_BEATS_PER_TIMEOUT = 20
_LONGEST_PERIOD_S = 0.5
_PATIENCE_BEATS = 4
"""After an error: how many periods a heartbeat must stand still to be taken for
silent."""

_RANKS_PER_SECOND = 50
"""How many heartbeats a rank reads, at most, while a step takes long."""

_LEFT, _FAILED = "left", "failed"
"""The last heartbeat of a rank that ends, and of one that ends by its own fault."""

Heartbeats = dict[int, str]
"""The last heartbeat of each rank that has one: a count, the wave and the step that it
has come to; or how it left."""


class RankWatch:
    """Watches the other ranks of one group, and shows them that this one lives.

    The store lives in the process of rank 0: if the store does not answer, it is
    rank 0 that does not. A store that answers late, or that is late with the
    heartbeats of this rank, too, is no reason to take anybody for silent.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        timeout: float,
        tell_clients: Callable[[], None],
        placard: Placard | None = None,
    ) -> None:
        """Starts the threads.

        Args:
            group: the data parallel process group.
            timeout: seconds that a step may take if a rank does not answer.
            tell_clients: tells the front-end that this engine is dead. Called by a
                thread of the watch, when this process is about to be ended.
            placard: says who is late, when this rank is.
        """
        self._rank, self._size = group.rank(), group.size()
        self._timeout, self._tell_clients = timeout, tell_clients
        self._period = min(_LONGEST_PERIOD_S, timeout / _BEATS_PER_TIMEOUT)
        store = dist.PrefixStore("balance", group.get_group_store())
        # Two connections: a slow answer to the one must not delay the heartbeats.
        self._store, self._reader = store, store.clone()
        self._position = (0, 0)
        self._step_began: float | None = None
        self._last = _LEFT
        self._closed = threading.Event()
        # Two threads, because a call of the store may never return: that of a process
        # that was stopped.
        self._life = threading.Thread(target=self._show_life, daemon=True)
        self._life.start()
        threading.Thread(target=self._watch_steps, daemon=True).start()
        if placard is not None:
            placard.join(self._rank, self._size)
            look = partial(self._look_around, placard)
            threading.Thread(target=look, daemon=True).start()

    def begin_step(self) -> None:
        """From now on this rank depends on the others, until `end_step`."""
        self._step_began = time.monotonic()

    def end_step(self, wave: int, step: int) -> None:
        """Ends a step for this rank; the exchange has a time-out of its own."""
        self._position, self._step_began = (wave, step), None

    @property
    def in_step(self) -> bool:
        """Whether this rank is in a step that depends on other ranks."""
        return self._step_began is not None

    def close(self) -> None:
        """Leaves, and ends the threads."""
        self._closed.set()
        self._life.join(_PATIENCE_BEATS * self._period)

    def missing(self) -> str:
        """Leaves; returns in words who keeps this rank waiting.

        Takes two to six seconds.
        """
        patience = _PATIENCE_BEATS * self._period
        before = self._read(patience)
        if before is not None:
            time.sleep(patience)
        now = self._read(patience)
        # A store that answered before may only be slow.
        return self._leave(before, before if now is None else now)

    def _leave(self, before: Heartbeats | None, now: Heartbeats | None) -> str:
        silent = self._silent(before, now)
        now = now or {}
        reasons = {
            "no answer from {} (process ended or stopped)": silent,
            "{} failed with an error of its own": _those_with(now, _FAILED),
            "{} not there yet (the process is alive)": self._behind(now),
            "{} left": _those_with(now, _LEFT),
        }
        blame = [words.format(_names(who)) for words, who in reasons.items() if who]
        self._last = _LEFT if blame else _FAILED
        self.close()
        if self._rank == 0:
            self._wait_for_others(silent)
        return blame[0] if blame else "all other ranks answer"

    def _wait_for_others(self, silent: list[int]) -> None:
        """Lets the others find out too, before the store goes with this process."""
        others = set(range(1, self._size)) - set(silent)
        for _ in range(_PATIENCE_BEATS):
            if others <= _gone(self._read(self._period) or {}):
                return
            time.sleep(self._period)

    def _show_life(self) -> None:
        """Body of the first thread."""
        count = 0
        self._write("0 0 0")
        while not self._closed.wait(self._period):
            count += 1
            wave, step = self._position
            self._write(f"{count} {wave} {step}")
        self._write(self._last)

    def _write(self, heartbeat: str) -> None:
        try:
            self._store.set(f"{self._rank}", heartbeat)
        except RuntimeError:
            # Rank 0 is gone; `missing` says so to whom it concerns.
            logger.debug("Data parallel balance: no heartbeat", exc_info=True)

    def _watch_steps(self) -> None:
        """Body of the second thread: ends this process if it is stuck.

        That is, in a call that has no time-out of its own, while a rank has been silent
        for half of the time.
        """
        while not self._closed.wait(self._period):
            began = self._step_began
            if began is None or time.monotonic() - began < self._timeout / 2:
                continue
            before = self._read(self._timeout / 2)
            if before is not None and self._closed.wait(self._timeout / 2):
                return
            now = before and self._read(self._timeout / 2)
            if self._step_began == began and self._silent(before, now):
                self._end_process(self._leave(before, now))

    def _look_around(self, placard: Placard) -> None:
        """Body of a third thread: whoever looks at a hang sees who else is late.

        It asks the less often the more ranks do, for they share a store.
        """
        while not self._closed.wait(max(LONG_S, self._size / _RANKS_PER_SECOND)):
            if placard.late:
                placard.ask()
                with suppress(RuntimeError):  # rank 0 is gone
                    placard.hear(read_heartbeats(self._reader, self._size))

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

    def _read(self, patience: float) -> Heartbeats | None:
        """Reads all heartbeats, in a thread, because the store may never answer.

        Args:
            patience: seconds to wait for the store.

        Returns:
            None if the store has not answered by then.
        """
        answer: SimpleQueue[Heartbeats | None] = SimpleQueue()

        def read() -> None:
            try:
                answer.put(read_heartbeats(self._reader, self._size))
            except RuntimeError:  # rank 0 is gone
                answer.put(None)

        threading.Thread(target=read, daemon=True).start()
        try:
            return answer.get(timeout=patience)
        except Empty:
            return None

    def _silent(self, before: Heartbeats | None, now: Heartbeats | None) -> list[int]:
        """The ranks that do not answer, by their heartbeats then and now."""
        if before is None or now is None:
            return [0] * (self._rank != 0)
        if before.get(self._rank) == now.get(self._rank):
            return []  # not even those of this rank arrive: the store is slow
        others = set(range(self._size)) - {self._rank} - _gone(now)
        return [rank for rank in sorted(others) if before.get(rank) == now.get(rank)]

    def _behind(self, now: Heartbeats) -> list[int]:
        """The ranks that have not come as far as this one."""
        here = sorted(now.keys() - _gone(now))
        return [r for r in here if tuple(map(int, now[r].split()[1:])) < self._position]


def read_heartbeats(store: dist.Store, size: int) -> Heartbeats:
    """The heartbeats of all ranks.

    One or two calls of the store, once every rank has come to its first exchange.

    Args:
        store: where they are.
        size: number of the ranks.

    Raises:
        RuntimeError: the store does not answer any more.
    """
    keys = [f"{rank}" for rank in range(size)]
    if not store.check(keys):  # for one that is missing, multi_get would wait
        keys = [key for key in keys if store.check([key])]
    values = store.multi_get(keys) if keys else []
    return {int(k): v.decode() for k, v in zip(keys, values, strict=True)}


def _those_with(now: Heartbeats, *reasons: str) -> list[int]:
    return [rank for rank, heartbeat in now.items() if heartbeat in reasons]


def _gone(now: Heartbeats) -> set[int]:
    return {*_those_with(now, _LEFT, _FAILED)}


def _names(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
