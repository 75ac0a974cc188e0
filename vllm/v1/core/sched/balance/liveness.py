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
"""A rank whose beat stands still for that many periods does not answer."""

_LEFT, _FAILED = "left", "failed"
"""The last beat of a rank that ends because of another one, or of an error."""


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
            timeout: seconds that a step may take before the ranks that do not
                answer are looked for.
            tell_clients: tells the front-end that this engine is dead. Called by a
                thread of the watch, when this process is about to be ended.
        """
        self._rank, self._size = group.rank(), group.size()
        self._timeout, self._tell_clients = timeout, tell_clients
        self._period = min(_LONGEST_PERIOD_S, timeout / _BEATS_PER_TIMEOUT)
        self._store = dist.PrefixStore("balance", group.get_group_store())
        self._beats = 0
        self._farewell = ""
        self._position = (0, 0)
        self._busy_since: float | None = None
        self._exchanging = False
        self._closed = threading.Event()
        self._beat()
        # Two threads, because the store's calls have no time-out if the process that
        # keeps the store is stopped.
        for target in (self._show_life, self._watch_steps):
            threading.Thread(target=target, daemon=True).start()

    def begin_step(self) -> None:
        """This rank begins a step (or the previous one has ended)."""
        self._busy_since, self._exchanging = time.monotonic(), False

    def begin_exchange(self, wave: int, step: int) -> None:
        """This rank has finished a step and waits for the others."""
        self._position, self._exchanging = (wave, step), True

    def rest(self) -> None:
        """The wave has ended: there is nothing to wait for."""
        self._busy_since, self._exchanging = None, False

    @property
    def busy(self) -> bool:
        """Whether this rank is in a step or waits for the others."""
        return self._busy_since is not None

    def close(self) -> None:
        """Ends the threads."""
        self._closed.set()

    def missing(self) -> str:
        """Who keeps this rank waiting, in words; then this rank must end.

        Takes four seconds at most, two more if the store does not answer.
        """
        before = self._read()
        if before:
            time.sleep(_PATIENCE_BEATS * self._period)
        return self._leave(before, self._read() if before else before)

    def _leave(self, before: dict[int, str], now: dict[int, str]) -> str:
        """Lets the others know that this rank goes, and whether by its own fault:
        they must not take it for the first that was lost."""
        silent = self._silent(before, now)
        blamed = silent or [rank for rank, beat in now.items() if beat == _FAILED]
        behind = self._behind(now)
        self._farewell = _LEFT if blamed or behind else _FAILED
        if now:
            self._beat()
        if self._rank == 0:
            self._wait_for_others(silent)
        if silent:
            return f"no answer from {_names(silent)} (process ended or stopped)"
        if blamed:
            return f"{_names(blamed)} failed with an error of the process"
        if behind:
            return f"{_names(behind)} not there yet (the process is alive)"
        return "all ranks answer"

    def _wait_for_others(self, silent: list[int]) -> None:
        """Lets the others find out too, before the store goes with this process."""
        others = set(range(1, self._size)) - set(silent)
        for _ in range(_PATIENCE_BEATS):
            beats = self._read()
            if all(beats.get(rank) in (_LEFT, _FAILED) for rank in others):
                return
            time.sleep(self._period)

    def _show_life(self) -> None:
        while not self._closed.wait(self._period):
            self._beat()

    def _watch_steps(self) -> None:
        suspected: tuple[float, dict[int, str]] | None = None
        while not self._closed.wait(self._period):
            since = self._busy_since
            if since is None or self._exchanging:  # the exchange has its own limit
                suspected = None
            else:
                waited = time.monotonic() - since
                if waited > self._timeout / 2 and (
                    suspected is None or suspected[0] != since
                ):
                    suspected = since, self._read()
                if waited > self._timeout and suspected is not None:
                    self._end_if_stuck(since, suspected[1], self._read())

    def _end_if_stuck(
        self, since: float, before: dict[int, str], now: dict[int, str]
    ) -> None:
        """Ends this process if a rank has been silent for half of the time: the step
        waits for that rank in a call that has no time-out of its own."""
        if self._silent(before, now) and self._busy_since == since:
            logger.error(
                "Data parallel balance: %s, and rank %d cannot finish its step "
                "without it. Ending rank %d %.0f s after its step began.",
                self._leave(before, now),
                self._rank,
                self._rank,
                time.monotonic() - since,
            )
            try:
                self._tell_clients()
            finally:
                kill_process_tree(os.getpid())

    def _beat(self) -> None:
        self._beats += 1
        wave, step = self._position
        beat = self._farewell or f"{self._beats} {wave} {step}"
        try:
            self._store.set(f"{self._rank}", beat)
        except RuntimeError:
            # Rank 0 is gone; `missing` says so to whom it concerns.
            logger.debug("Data parallel balance: no beat", exc_info=True)

    def _read(self) -> dict[int, str]:
        """The last beat of every rank that has one; empty if the store is silent.

        In a thread of its own, because of the calls without a time-out.
        """
        answer: SimpleQueue[dict[int, str]] = SimpleQueue()

        def read() -> None:
            try:
                ranks = [r for r in range(self._size) if self._store.check([f"{r}"])]
                beats = self._store.multi_get([f"{rank}" for rank in ranks])
            except RuntimeError:
                answer.put({})
            else:
                answer.put(dict(zip(ranks, (b.decode() for b in beats), strict=True)))

        threading.Thread(target=read, daemon=True).start()
        try:
            return answer.get(timeout=_PATIENCE_BEATS * self._period)
        except Empty:
            return {}

    def _silent(self, before: dict[int, str], now: dict[int, str]) -> list[int]:
        """The ranks that do not answer, by their beats then and now."""
        if not now:
            return [0]
        others = (rank for rank in range(self._size) if rank != self._rank)
        return [
            rank
            for rank in others
            if before.get(rank) == now.get(rank)
            and now.get(rank) not in (_LEFT, _FAILED)
        ]

    def _behind(self, now: dict[int, str]) -> list[int]:
        """The ranks that have not come as far as this one."""
        return [
            rank
            for rank, beat in now.items()
            if beat not in (_LEFT, _FAILED)
            and tuple(map(int, beat.split()[1:])) < self._position
        ]


def _names(ranks: list[int]) -> str:
    return f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
