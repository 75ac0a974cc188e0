# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The one collective call of balance scheduling: every rank's row to every rank."""

from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from vllm.logger import init_logger
from vllm.v1.core.sched.balance.liveness import RankWatch
from vllm.v1.core.sched.balance.rows import Row, Snapshot

logger = init_logger(__name__)


class RowExchange:
    """Gathers one row per rank, and names the ranks that do not come.

    The buffers are reused and follow the group's size (elastic expert parallelism
    replaces the group while serving).
    """

    def __init__(self, timeout: float) -> None:
        """An exchange without a group yet.

        Args:
            timeout: seconds to wait for the other ranks.
        """
        self._timeout = timeout
        self._group: dist.ProcessGroup | None = None
        self._watch: RankWatch | None = None
        self._sent = torch.zeros(len(Row._fields), dtype=torch.int64)

    def begin_step(self) -> None:
        """This rank has work: from now on it depends on the other ranks."""
        if self._watch is not None and not self._watch.in_step:
            self._watch.begin_step()

    def gather(
        self, row: Row, group: dist.ProcessGroup, tell_clients: Callable[[], None]
    ) -> Snapshot:
        """Blocks until every rank of the group has called it with its row.

        Args:
            row: this rank's row.
            group: the data parallel process group (CPU, gloo).
            tell_clients: tells the front-end that this engine is dead.

        Raises:
            RuntimeError: a rank left the group or did not come in time, and which;
                or the rows do not match.
        """
        if group is not self._group:
            self._follow(group, tell_clients)
        assert self._watch is not None
        self._watch.end_step(row.wave, row.step)
        self._sent.copy_(torch.tensor(row, dtype=torch.int64))
        try:
            work = dist.all_gather(self._views, self._sent, group=group, async_op=True)
            work.wait(timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise RuntimeError(
                f"Data parallel balance: {self._watch.missing()}; the exchange after "
                f"step {row.step} of wave {row.wave} failed on rank {group.rank()}, "
                f"which waits {self._timeout:g} s at most."
            ) from error
        snapshot = Snapshot.from_rows(self._received.tolist())
        self._watch.begin_step()
        return snapshot

    def _follow(
        self, group: dist.ProcessGroup, tell_clients: Callable[[], None]
    ) -> None:
        if self._watch is not None:
            self._watch.close()
        self._group = group
        self._watch = RankWatch(group, self._timeout, tell_clients)
        self._received = torch.empty((group.size(), len(self._sent)), dtype=torch.int64)
        self._views = list(self._received.unbind())

    def rest(self, wave: int, step: int) -> None:
        """The wave has ended: no rank depends on another until the next one."""
        if self._watch is not None:
            self._watch.end_step(wave, step)

    def close(self, error: BaseException | None) -> None:
        """Ends the watch; after an error in a step, first says which ranks do not
        answer, because such an error is mostly another rank's end.

        Args:
            error: why the engine core ends, if not as it was told to.
        """
        if self._watch is None:
            return
        if self._watch.in_step and isinstance(error, Exception):
            logger.error("Data parallel balance: %s.", self._watch.missing())
        self._watch.close()
