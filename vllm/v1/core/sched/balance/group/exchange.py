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
from vllm.v1.core.sched.balance.group.liveness import RankWatch
from vllm.v1.core.sched.balance.group.placard import Placard
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
        placard: Placard | None = None,
    ) -> None:
        """An exchange without a group yet.

        Args:
            timeout: seconds to wait for the other ranks.
            identity: what this rank must have in common with them. It is compared
                once for each group; None for ranks that are known to be equal.
            placard: is told what this rank does.
        """
        self._timeout = timeout
        self._identity = identity
        self._group: dist.ProcessGroup | None = None
        self._watch: RankWatch | None = None
        self._placard = placard or Placard()

    def begin_step(self) -> None:
        """This rank has work: from now on it depends on the other ranks."""
        self._placard.begin()
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
                a row arrived damaged; the rows do not match; or a rank would decide
                differently.
        """
        if group is not self._group:
            self._follow(group, tell_clients)
        assert self._watch is not None
        self._watch.end_step(row.wave, row.step)
        self._placard.show("exchange", row.wave, row.step)
        self._sent.copy_(torch.tensor(encode(row), dtype=torch.int64))
        try:
            # Every row goes straight to its reader, two hops for all of them (gloo
            # sends once the reader is ready); its all-gather takes 2(N - 1) in a ring.
            work = group.alltoall_base(self._received, self._sent, [], [])
            work.wait(timedelta(seconds=self._timeout))
        except RuntimeError as error:
            raise RuntimeError(
                f"Data parallel balance: {self._watch.missing()}; the exchange after "
                f"step {row.step} of wave {row.wave} failed on rank {group.rank()}, "
                f"which waits {self._timeout:g} s at most."
            ) from error
        snapshot = Snapshot.from_rows(decode(self._received.tolist()))
        self._watch.begin_step()
        self._placard.show("model", row.wave, row.step)
        return snapshot

    def _follow(
        self, group: dist.ProcessGroup, tell_clients: Callable[[], None]
    ) -> None:
        if self._watch is not None:
            self._watch.close()
        self._group = group
        self._watch = RankWatch(group, self._timeout, tell_clients, self._placard)
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
        assert self._watch is not None
        end = time.monotonic() + self._timeout
        # No call that waits: it would keep the heartbeats waiting, too.
        while not store.check(["0"]):
            if time.monotonic() > end:
                raise RuntimeError(
                    f"Data parallel balance: {self._watch.missing()}; rank 0 has not "
                    f"come to the first exchange within {self._timeout:g} s."
                )
            time.sleep(_POLL_S)
        if reason := difference(
            group.rank(), self._identity, "rank 0", json.loads(store.get("0"))
        ):
            raise RuntimeError(reason)

    def rest(self, wave: int, step: int) -> None:
        """The wave has ended: no rank depends on another until the next one."""
        self._placard.show("idle", wave, step)
        if self._watch is not None:
            self._watch.end_step(wave, step)

    def close(self, error: BaseException | None) -> None:
        """Ends the watch; after an error in a step, first says who does not answer.

        Such an error is mostly another rank's end.

        Args:
            error: why the engine core ends, if not as it was told to.
        """
        if self._watch is None:
            return
        if self._watch.in_step and isinstance(error, Exception):
            logger.error("Data parallel balance: %s.", self._watch.missing())
        self._watch.close()
