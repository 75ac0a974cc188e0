# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The one collective call of balance scheduling: every rank's row to every rank."""

import torch
import torch.distributed as dist
from vllm.v1.core.sched.balance.rows import Row, Snapshot


class RowExchange:
    """Gathers one row per rank; the buffers are reused and follow the group's size
    (elastic expert parallelism replaces the group while serving)."""

    def __init__(self) -> None:
        self._sent = torch.zeros(len(Row._fields), dtype=torch.int64)
        self._received: torch.Tensor | None = None

    def gather(self, row: Row, group: dist.ProcessGroup) -> Snapshot:
        """Blocks until every rank of the group has called it with its row.

        Args:
            row: this rank's row.
            group: the data parallel process group (CPU, gloo).

        Raises:
            RuntimeError: a rank left the group, or the rows do not match.
        """
        size = dist.get_world_size(group)
        if self._received is None or len(self._received) != size:
            self._received = torch.empty((size, len(row)), dtype=torch.int64)
        self._sent.copy_(torch.tensor(row, dtype=torch.int64))
        dist.all_gather(list(self._received.unbind()), self._sent, group=group)
        return Snapshot.from_rows(self._received.tolist())
