# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The ranks as a group: what they must have in common, and one exchange per step."""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from functools import cache
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any
from zlib import crc32

import torch
import torch.distributed as dist
from vllm import envs
from vllm.logger import init_logger
from vllm.v1.core.sched.balance.policies.rows import Row, Snapshot
from vllm.v1.core.sched.balance.watch import RankWatch

if TYPE_CHECKING:
    from vllm.config import ParallelConfig

logger = init_logger(__name__)

_ALL_ANSWER = "all other ranks answer"

Identity = Mapping[str, Any]
"""What ranks must have in common, or they would decide differently."""

_POLICY, _DISPATCH = "--data-parallel-balance", "--data-parallel-dispatch"

WIDTH = len(Row._fields) + 1
"""Integers of 64 bits per row: its fields and a checksum."""

_FIELDS = Struct(f"<{len(Row._fields)}q")


def identity_of(parallel_config: "ParallelConfig") -> Identity:
    """The identity of a rank that is started with this configuration."""
    policy = parallel_config.data_parallel_balance
    return {
        _POLICY: policy,
        _DISPATCH: parallel_config.data_parallel_dispatch or "unset",
        "balance code": "any" if policy == "off" else code_version(),
    }


@cache
def code_version() -> str:
    """A hash of all files of this folder and those below it.

    All of them, because a list of those that matter would be forgotten; and their
    bytes, because a version number does not show that somebody edited a file on one
    host.
    """
    digest = hashlib.sha256()
    folder = Path(__file__).parent
    for path in sorted(folder.rglob("*.py")):
        content = path.read_bytes()
        name = path.relative_to(folder).as_posix()
        digest.update(f"{name} {len(content)}\n".encode() + content)
    return digest.hexdigest()[:12]


def difference(rank: int, found: Identity, me: int, mine: Identity) -> str | None:
    """Says in one sentence, with what to do, why two ranks cannot be in one group."""
    for what in mine:
        if found[what] != mine[what]:
            return (
                f"Data parallel rank {rank} has {what} {found[what]}, rank {me} has "
                f"{what} {mine[what]}. Such ranks would wait for each other for ever; "
                "start all of them with the same arguments and the same wheel."
            )
    return None


def check_identity(group: dist.ProcessGroup, mine: Identity) -> None:
    """Tells the other ranks what this one is, and compares, in the store of the group.

    A rank for which nothing was chosen only tells it: others may differ, but if any of
    them balances, it finds that out.

    Raises:
        RuntimeError: a rank would decide differently, and in what; or one has not said
            what it is in the time that a start may take.
    """
    seconds = envs.VLLM_ENGINE_READY_TIMEOUT_S
    me, keys = group.rank(), [f"{rank}" for rank in range(group.size())]
    store = dist.PrefixStore("balance identity", group.get_group_store())
    store.set(keys[me], json.dumps(mine))
    if mine[_POLICY] == "off" and mine[_DISPATCH] == "unset":
        return
    try:
        store.wait(keys, timedelta(seconds=seconds))
        identities = [json.loads(said) for said in store.multi_get(keys)]
    except RuntimeError as error:
        raise RuntimeError(
            f"Data parallel balance: rank {me} has waited {seconds:g} s at most for "
            "the others to say which policy they have. One has ended, which its log "
            "explains, or is of a vLLM without it; install the same wheel for all."
        ) from error
    for rank, found in enumerate(identities):
        if reason := difference(rank, found, me, mine):
            raise RuntimeError(reason)


def timeout_of(parallel_config: "ParallelConfig") -> float:
    """Seconds that a rank waits for the others.

    What the operator allows the collective calls on the CPU, or else what upstream
    allows a step of the model.
    """
    seconds = parallel_config.cpu_distributed_timeout_seconds
    return float(seconds or envs.VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS)


def encode(row: Row) -> list[int]:
    """The integers to send."""
    return [*row, crc32(_FIELDS.pack(*row))]


def decode(received: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """The rows, in rank order, of what `encode` returned on each rank.

    Raises:
        RuntimeError: a row is not what its rank sent. Without this check the ranks
            would decide differently, and wait for each other for ever.
    """
    rows: list[Sequence[int]] = []
    for rank, (*row, checksum) in enumerate(received):
        if crc32(_FIELDS.pack(*row)) != checksum:
            raise RuntimeError(
                f"Data parallel balance: the row of rank {rank} arrived damaged "
                f"({row}, checksum {checksum}). The memory, the network or a "
                "collective call on the CPU changes data; check the host."
            )
        rows.append(row)
    return rows


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
            identity: None for ranks that are known to be equal.
            rank: what to show until there is a group.
            size: the same.
        """
        self._timeout = timeout
        self._identity = identity
        self._group: dist.ProcessGroup | None = None
        self._watch = RankWatch(timeout, rank, size)

    def start(self) -> None:
        """From now on this process shows what it does, and ends with its parent."""
        self._watch.start()

    def join(self, group: dist.ProcessGroup, tell_clients: Callable[[], None]) -> None:
        """Follows this group from now on; all its ranks must.

        Raises:
            RuntimeError: a rank would decide differently, or has not come.
        """
        self._group = group
        self._watch.join(group, tell_clients)
        if self._identity is not None:
            check_identity(group, self._identity)
        self._received = torch.empty((group.size(), WIDTH), dtype=torch.int64)
        self._sent = torch.empty_like(self._received)

    def begin_step(self) -> None:
        """This rank has work: from now on it depends on the other ranks."""
        doing, wave, step, _ = self._watch.status
        if doing == "idle":  # after an exchange a step has begun already
            self._watch.show("model", wave, step)

    def gather(
        self, row: Row, group: dist.ProcessGroup, tell_clients: Callable[[], None]
    ) -> Snapshot:
        """Blocks until every rank of the group (gloo) has called it with its row.

        Raises:
            RuntimeError: a rank left the group or did not come in time, and which;
                a row arrived damaged; the rows do not match; or a rank would decide
                differently.
        """
        if group is not self._group:
            self.join(group, tell_clients)
        self._watch.show("exchange", row.wave, row.step)
        self._sent.copy_(torch.tensor(encode(row), dtype=torch.int64))
        try:
            # Every row goes straight to its reader, two hops for all of them (gloo
            # sends once the reader is ready); its all-gather takes 2(N - 1) in a ring.
            work = group.alltoall_base(self._received, self._sent, [], [])
            work.wait(timedelta(seconds=self._timeout))
        except RuntimeError as error:
            blame = self._watch.blame()
            self._watch.leave(after_error=True)
            raise RuntimeError(
                f"Data parallel balance: {blame or _ALL_ANSWER}; the exchange after "
                f"step {row.step} of wave {row.wave} failed on rank {group.rank()}, "
                f"which waits {self._timeout:g} s at most."
            ) from error
        snapshot = Snapshot.from_rows(decode(self._received.tolist()))
        self._watch.show("model", row.wave, row.step)
        return snapshot

    def rest(self, wave: int, step: int) -> None:
        """The wave has ended: no rank depends on another until the next one."""
        self._watch.show("idle", wave, step)

    def close(self, error: BaseException | None) -> None:
        """Leaves the group; after an error in a step, first says who does not answer.

        Such an error is mostly another rank's end.
        """
        is_failure = self._watch.in_step and isinstance(error, Exception)
        if is_failure:
            blame = self._watch.blame() or _ALL_ANSWER
            logger.error("Data parallel balance: %s.", blame)
        self._watch.leave(after_error=is_failure)
