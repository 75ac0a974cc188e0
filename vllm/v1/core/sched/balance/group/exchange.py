# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The one collective call of balance scheduling: every rank's row to every rank."""

import json
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch.distributed as dist
from vllm.logger import init_logger
from vllm.v1.core.sched.balance.group.rank_watch import RankWatch
from vllm.v1.core.sched.balance.group.wire import WIDTH, decode, encode
from vllm.v1.core.sched.balance.identity import Identity, difference
from vllm.v1.core.sched.balance.policies.rows import Row, Snapshot

logger = init_logger(__name__)

_POLL_S = 0.01


class RowExchange:
    """Gathers one row per rank, and names the ranks that do not come.

    The buffers are reused and follow the group's size (elastic expert parallelism
    replaces the group while serving).
    """

    def __init__(
        self,
        timeout: float,
        identity: Identity | None = None,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        """An exchange without a group yet, which starts nothing.

        Args:
            timeout: seconds to wait for the other ranks.
            identity: what this rank must have in common with them. It is compared
                once for each group; None for ranks that are known to be equal.
            rank: data parallel rank, to show until there is a group.
            size: number of the ranks.
        """
        self._timeout = timeout
        self._identity = identity
        self._group: dist.ProcessGroup | None = None
        self._watch = RankWatch(timeout, rank, size)

    def start(self) -> None:
        """From now on this process shows what it does, and ends with its parent."""
        self._watch.start()

    def begin_step(self) -> None:
        """This rank has work: from now on it depends on the other ranks."""
        doing, wave, step, _ = self._watch.status
        if doing == "idle":  # after an exchange a step has begun already
            self._watch.show("model", wave, step)

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
                a row arrived damaged; the rows do not match; or a rank would decide
                differently.
        """
        if group is not self._group:
            self._follow(group, tell_clients)
        self._watch.show("exchange", row.wave, row.step)
        self._sent.copy_(torch.tensor(encode(row), dtype=torch.int64))
        try:
            # Every row goes straight to its reader, two hops for all of them (gloo
            # sends once the reader is ready); its all-gather takes 2(N - 1) in a ring.
            work = group.alltoall_base(self._received, self._sent, [], [])
            work.wait(timedelta(seconds=self._timeout))
        except RuntimeError as error:
            blame = self._watch.blame()
            self._watch.leave(blame)
            raise RuntimeError(
                f"Data parallel balance: {blame}; the exchange after "
                f"step {row.step} of wave {row.wave} failed on rank {group.rank()}, "
                f"which waits {self._timeout:g} s at most."
            ) from error
        snapshot = Snapshot.from_rows(decode(self._received.tolist()))
        self._watch.show("model", row.wave, row.step)
        return snapshot

    def _follow(
        self, group: dist.ProcessGroup, tell_clients: Callable[[], None]
    ) -> None:
        self._group = group
        self._watch.join(group, tell_clients)
        self._compare(group)
        self._received = torch.empty((group.size(), WIDTH), dtype=torch.int64)
        self._sent = torch.empty_like(self._received)

    def _compare(self, group: dist.ProcessGroup) -> None:
        """Each rank compares itself with rank 0, in the store of the group."""
        if self._identity is None:
            return
        store = dist.PrefixStore("balance identity", group.get_group_store())
        if group.rank() == 0:
            store.set("0", json.dumps(self._identity))
            return
        end = time.monotonic() + self._timeout
        # No call that waits: it would keep the heartbeats waiting, too.
        while not store.check(["0"]):
            if time.monotonic() > end:
                blame = self._watch.blame()
                self._watch.leave(blame)
                raise RuntimeError(
                    f"Data parallel balance: {blame}; rank 0 has not come to the first "
                    f"exchange within {self._timeout:g} s."
                )
            time.sleep(_POLL_S)
        if reason := difference(
            group.rank(), self._identity, "rank 0", json.loads(store.get("0"))
        ):
            raise RuntimeError(reason)

    def rest(self, wave: int, step: int) -> None:
        """The wave has ended: no rank depends on another until the next one."""
        self._watch.show("idle", wave, step)

    def close(self, error: BaseException | None) -> None:
        """Leaves the group; after an error in a step, first says who does not answer.

        Such an error is mostly another rank's end.

        Args:
            error: why the engine core ends, if not as it was told to.
        """
        blame = None
        if self._watch.in_step and isinstance(error, Exception):
            blame = self._watch.blame()
            logger.error("Data parallel balance: %s.", blame)
        self._watch.leave(blame)
