# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The ranks as a group: what they must have in common, and one exchange per step."""

import math
from collections.abc import Callable, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from vllm import envs
from vllm.distributed.utils import init_gloo_process_group
from vllm.logger import init_logger
from vllm.v1.core.sched.balance.options import BALANCE_OPTIONS
from vllm.v1.core.sched.balance.rank.watch import RankWatch

from vllm_balance.code_hash import CORE, code_hash
from vllm_balance.core.policies.rows import Limits, Row, Snapshot

if TYPE_CHECKING:
    from vllm.config import VllmConfig

logger = init_logger(__name__)


def identity_of(vllm_config: "VllmConfig") -> str:
    """What ranks must have in common, or they would decide differently."""
    parallel_config = vllm_config.parallel_config
    policy = parallel_config.data_parallel_balance
    given = [(flag, getattr(parallel_config, o)) for o, flag in BALANCE_OPTIONS.items()]
    flags = " ".join(f"{flag} {value}" for flag, value in given if value)
    if policy == "off":
        return flags
    sent = "before" if sends_early(vllm_config) else "after"
    return (
        f"{flags} (balance code {code_version()}, steps in flight "
        f"{vllm_config.max_concurrent_batches}, rows sent {sent} a step)"
    )


def sends_early(vllm_config: "VllmConfig") -> bool:
    """Whether rows travel while their step is computed.

    A decision then knows neither the requests that end in the step nor those that come
    in it. Between hosts that costs less than devices which wait for rows. With
    asynchronous scheduling a step is computed meanwhile in any case.
    """
    parallel_config = vllm_config.parallel_config
    local = parallel_config.data_parallel_size_local
    return (
        local < parallel_config.data_parallel_size
        and vllm_config.max_concurrent_batches == 1
        and not parallel_config.enable_elastic_ep  # a group may go meanwhile
    )


@cache
def code_version() -> str:
    """A hash of all files that decide, and of those that carry it out."""
    return code_hash(CORE, Path(__file__).parent)


def check_identity(
    group: dist.ProcessGroup, mine: str, limits: Sequence[int] = ()
) -> list[tuple[int, ...]]:
    """Tells the other ranks what this one is, and compares, in the store of the group.

    A rank with balance off only tells it: if another one balances, that one refuses.

    Returns:
        The limits of all ranks, where these compare.

    Raises:
        RuntimeError: a rank would decide differently, and in what; or one has not said
            what it is in the time that a start may take.
    """
    seconds = envs.VLLM_ENGINE_READY_TIMEOUT_S
    me, keys = group.rank(), [f"{rank}" for rank in range(group.size())]
    store = dist.PrefixStore("balance identity", group.get_group_store())
    store.set(keys[me], "\n".join([mine, *map(str, limits)]))
    if mine == "--data-parallel-balance off":
        return []
    try:
        store.wait(keys, timedelta(seconds=seconds))
        answers = [each.decode().split("\n") for each in store.multi_get(keys)]
    except RuntimeError as error:
        raise RuntimeError(
            f"Data parallel balance: rank {me} has waited {seconds:g} s at most for "
            "the others to say which policy they have. One has ended, which its log "
            "explains, or is of a vLLM without it; install the same wheel for all."
        ) from error
    for rank, (theirs, *_) in enumerate(answers):
        if theirs != mine:
            raise RuntimeError(
                f"Data parallel rank {rank} has {theirs}, rank {me} has {mine}. Such "
                "ranks would wait for each other for ever; start all of them with the "
                "same arguments and the same wheel."
            )
    return [tuple(map(int, limits)) for _, *limits in answers]


class RowExchange:
    """Gathers one row per rank, and names the ranks that do not come.

    The buffers are reused and follow the group's size (elastic expert parallelism
    replaces the group while serving).
    """

    def __init__(
        self, timeout: float, identity: str = "", rank: int = 0, size: int = 1
    ) -> None:
        """Waits `timeout` seconds at most; until there is a group, shows `rank`."""
        self._timeout, self._identity = timeout, identity
        self._watch = RankWatch(timeout, rank, size)

    def start(self, in_wave: Callable[[], bool]) -> None:
        """From now on this process shows what it does."""
        self._watch.start(in_wave)

    def join(
        self,
        group: dist.ProcessGroup,
        limits: Limits,
        tell_clients: Callable[[], None],
        own_connections: bool = False,
    ) -> None:
        """Follows this group (gloo) from now on; all its ranks must.

        Rows have connections of their own where they may be on their way while the
        group does something else.
        """
        self._group = group
        self._watch.join(group, tell_clients)
        self._limits = check_identity(group, self._identity, limits)
        if own_connections:
            store = dist.PrefixStore("balance rows", group.get_group_store())
            timeout = timedelta(seconds=self._timeout)
            self._group = init_gloo_process_group(
                store, group.rank(), group.size(), timeout
            )
        shape = group.size(), len(Row._fields)
        self._received = torch.empty(shape, dtype=torch.int64)
        self._sent = torch.empty_like(self._received)

    def begin_step(self) -> None:
        """This rank has work: from now on it depends on the other ranks."""
        doing, wave, step, _ = self._watch.status
        if doing == "idle":  # after an exchange a step has begun already
            self._watch.show("model", wave, step)

    def send(self, row: Row) -> None:
        """Begins to send this rank's row to the others, and to receive theirs."""
        self._row = row
        self._sent.copy_(torch.tensor(row, dtype=torch.int64))
        # Every row goes straight to its reader, two hops for all of them (gloo sends
        # once the reader is ready); its all-gather takes 2(N - 1) in a ring.
        self._work = self._group.alltoall_base(self._received, self._sent, [], [])

    def receive(self) -> Snapshot:
        """Blocks until every rank of the group has sent its row.

        Raises:
            RuntimeError: a rank left the group or did not come in time, and which;
                or the rows do not match.
        """
        group, row = self._group, self._row
        self._watch.show("exchange", row.wave, row.step)
        try:
            self._work.wait(timedelta(seconds=self._timeout))
        except RuntimeError as error:
            blame = self._watch.blame()
            self._watch.leave(after_error=True)
            raise RuntimeError(
                f"Data parallel balance: {blame}; the exchange after "
                f"step {row.step} of wave {row.wave} failed on rank {group.rank()}, "
                f"which waits {self._timeout:g} s at most."
            ) from error
        snapshot = Snapshot.from_rows(self._received.tolist(), self._limits)
        self._watch.show("model", row.wave, row.step)
        return snapshot

    def skip(self, wave: int, step: int) -> None:
        """Ends a step after which no rank sends rows."""
        self._watch.show("model", wave, step)

    def end_wave(self, wave: int, step: int) -> None:
        """No rank depends on another until the next wave."""
        self._watch.show("idle", wave, step)

    def close(self, error: BaseException | None) -> None:
        """Leaves the group; after an error in a step, first says who does not answer.

        Such an error is mostly another rank's end.
        """
        is_failure = self._watch.in_step and isinstance(error, Exception)
        if is_failure:
            logger.error("Data parallel balance: %s.", self._watch.blame())
        self._watch.leave(after_error=is_failure)


class SelfExchange(RowExchange):
    """That of a rank which waits for no other: it gets its own row back."""

    def __init__(self, limits: Callable[[], Limits]) -> None:
        super().__init__(timeout=math.inf)
        self._own_limits = limits

    def start(self, in_wave: Callable[[], bool]) -> None:
        """Nobody else need know what it does."""

    def send(self, row: Row) -> None:
        self._row = row

    def receive(self) -> Snapshot:
        return Snapshot.from_rows([self._row], [self._own_limits()])
