# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Names the data parallel ranks that do not answer.

Gloo says that a collective call failed, not whose fault it was, and a rank that
waits in a collective call of the model is in nobody's time-out. So a thread of every
rank writes a beat to the group's store twice per second. Nobody reads the beats until
a step takes too long or fails; the step itself pays nothing.
"""

import os
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

import torch.distributed as dist
from vllm.logger import init_logger
from vllm.utils.system_utils import kill_process_tree

logger = init_logger(__name__)

_BEATS_PER_TIMEOUT = 20
_LONGEST_PERIOD_S = 0.5
_PATIENCE_BEATS = 4
"""After an error: how many periods a beat must stand still to be taken for silent."""

_LEFT, _FAILED = "left", "failed"
"""The last beat of a rank that ends, and of one that ends by its own fault."""

Beats = dict[int, str]
"""The last beat of each rank that has one: a count, the wave and the step that it has
come to; or its farewell. Empty if the store does not answer."""


class RankWatch:
    """Watches the other ranks of one group, and shows them that this one lives.

    The store lives in the process of rank 0: if the store does not answer, it is
    rank 0 that does not.
    """

    def __init__(
        self,
        group: dist.ProcessGroup,
        timeout: float,
        tell_clients: Callable[[], None],
    ) -> None:
        """Starts the threads.

        Args:
            group: the data parallel process group.
            timeout: seconds that a step may take if a rank does not answer.
            tell_clients: tells the front-end that this engine is dead. Called by a
                thread of the watch, when this process is about to be ended.
        """
        self._rank, self._size = group.rank(), group.size()
        self._timeout, self._tell_clients = timeout, tell_clients
        self._period = min(_LONGEST_PERIOD_S, timeout / _BEATS_PER_TIMEOUT)
        self._store = dist.PrefixStore("balance", group.get_group_store())
        self._position = (0, 0)
        self._step_began: float | None = None
        self._farewell = _LEFT
        self._closed = threading.Event()
        # Two threads, because a call of the store may never return: that of a process
        # that was stopped.
        self._life = threading.Thread(target=self._show_life, daemon=True)
        self._life.start()
        threading.Thread(target=self._watch_steps, daemon=True).start()

    def begin_step(self) -> None:
        """From now on this rank depends on the others, until `end_step`."""
        self._step_began = time.monotonic()

    def end_step(self, wave: int, step: int) -> None:
        """This rank has come to the end of that step; the exchange has a time-out of
        its own."""
        self._position, self._step_began = (wave, step), None

    @property
    def in_step(self) -> bool:
        """Whether this rank is in a step that depends on other ranks."""
        return self._step_began is not None

    def close(self) -> None:
        """Says farewell and ends the threads."""
        self._closed.set()
        self._life.join(_PATIENCE_BEATS * self._period)

    def missing(self) -> str:
        """Says farewell; returns in words who keeps this rank waiting.

        Takes two to four seconds.
        """
        if before := self._read():
            time.sleep(_PATIENCE_BEATS * self._period)
        now = self._read()
        return self._leave(before if now else {}, now)

    def _leave(self, before: Beats, now: Beats) -> str:
        silent = self._silent(before, now)
        reasons = {
            "no answer from {} (process ended or stopped)": silent,
            "{} failed with an error of its own": _those_with(now, _FAILED),
            "{} not there yet (the process is alive)": self._behind(now),
            "{} left": _those_with(now, _LEFT),
        }
        blame = [words.format(_names(who)) for words, who in reasons.items() if who]
        self._farewell = _LEFT if blame else _FAILED
        self.close()
        if self._rank == 0:
            self._wait_for_others(silent)
        return blame[0] if blame else "all other ranks answer"

    def _wait_for_others(self, silent: list[int]) -> None:
        """Lets the others find out too, before the store goes with this process."""
        others = set(range(1, self._size)) - set(silent)
        for _ in range(_PATIENCE_BEATS):
            if others <= _gone(self._read()):
                return
            time.sleep(self._period)

    def _show_life(self) -> None:
        """Body of the first thread."""
        count = 0
        self._beat("0 0 0")
        while not self._closed.wait(self._period):
            count += 1
            wave, step = self._position
            self._beat(f"{count} {wave} {step}")
        self._beat(self._farewell)

    def _beat(self, beat: str) -> None:
        try:
            self._store.set(f"{self._rank}", beat)
        except RuntimeError:
            # Rank 0 is gone; `missing` says so to whom it concerns.
            logger.debug("Data parallel balance: no beat", exc_info=True)

    def _watch_steps(self) -> None:
        """Body of the second thread: ends this process if it is stuck in a call that
        has no time-out of its own, and a rank has been silent for half of the time."""
        while not self._closed.wait(self._period):
            began = self._step_began
            if began is None or time.monotonic() - began < self._timeout / 2:
                continue
            before = self._read()
            if self._closed.wait(self._timeout / 2):
                return
            now = self._read()
            if self._step_began == began and self._silent(before, now):
                self._end_process(self._leave(before, now))

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

    def _read(self) -> Beats:
        """In a thread of its own, because a call of the store may never return."""
        answer: SimpleQueue[Beats] = SimpleQueue()

        def read() -> None:
            try:
                ranks = [r for r in range(self._size) if self._store.check([f"{r}"])]
                beats = self._store.multi_get([f"{rank}" for rank in ranks])
            except RuntimeError:  # rank 0 is gone
                answer.put({})
            else:
                answer.put(dict(zip(ranks, (b.decode() for b in beats), strict=True)))

        threading.Thread(target=read, daemon=True).start()
        try:
            return answer.get(timeout=_PATIENCE_BEATS * self._period)
        except Empty:
            return {}

    def _silent(self, before: Beats, now: Beats) -> list[int]:
        """The ranks that do not answer, by their beats then and now."""
        if not now:  # a store that answered before may only be slow
            return [] if before else [0]
        others = set(range(self._size)) - {self._rank} - _gone(now)
        return [rank for rank in sorted(others) if before.get(rank) == now.get(rank)]

    def _behind(self, now: Beats) -> list[int]:
        """The ranks that have not come as far as this one."""
        here = sorted(now.keys() - _gone(now))
        return [r for r in here if tuple(map(int, now[r].split()[1:])) < self._position]


def _those_with(now: Beats, *farewells: str) -> list[int]:
    return [rank for rank, beat in now.items() if beat in farewells]


def _gone(now: Beats) -> set[int]:
    return {*_those_with(now, _LEFT, _FAILED)}


def _names(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
