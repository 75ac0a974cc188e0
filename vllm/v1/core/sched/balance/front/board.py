# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The board in shared memory by which the API servers of a host know of each other.

The process that starts them hands it to them. It has no name, and can be read by every
process that may read the memory of the servers, as all of the same user may. Each
server writes its own row, and reads all, without a lock: a half-written row costs one
choice of a rank. Imports nothing else of vllm.

A prompt is published once it is computed, so two servers that get the same new one
before may have it computed on two ranks. While a server is stopped, its ended requests
still count on their ranks, and others send less there.
"""

from argparse import Namespace
from collections.abc import Iterator
from copy import copy
from multiprocessing.context import SpawnContext
from typing import Any

import numpy as np

from vllm_balance.core.dispatch import MOST_RANKS, Board, Keys

KEY_BYTES = 14
"""Length of the key of a chunk: with the rank, 16."""

CELLS = 1024
"""Chunks of prompts that stay published: the last ones of each server. So one that was
idle has no more than these to catch up with, and misses the others."""

_ROW = np.dtype(
    [
        ("counts", "i8", (2, MOST_RANKS)),  # tokens and requests of each rank
        ("published", "i8"),  # chunks so far
        ("cells", "i1", 16 * CELLS),  # chunk by chunk, round and round
    ]
)


_memory: Any = None
"""The memory of the board, in an API server that was started with one."""

_handed: list[Any] = []
"""The memory of the boards that this process handed out. `multiprocessing` would reuse
what nobody here refers to, while the servers write to it."""


def create_board(context: SpawnContext, servers: int) -> Any:
    """The memory for so many API servers, which this context starts."""
    return context.RawArray("b", servers * _ROW.itemsize)


def hand_board(args: Namespace, context: SpawnContext, servers: int) -> Namespace:
    """The arguments to start several API servers with, which bring them a board.

    The arguments, because every release hands them over at the same place.
    """
    if servers > 1:
        args = copy(args)
        _handed.append(create_board(context, servers))
        args.balance_board = _Handed(_handed[-1])
    return args


class _Handed:
    """Gives the board's memory to the API server that unpickles it as it starts."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def __reduce__(self) -> Any:
        return _take, (self._memory,)


def _take(memory: Any) -> None:
    global _memory
    _memory = memory


def board_of(server: int) -> "SharedBoard | None":
    """The board as this one of several API servers sees it; None if it is alone."""
    return None if _memory is None else SharedBoard(_memory, server)


class SharedBoard(Board):
    def __init__(self, memory: Any, server: int) -> None:
        rows = np.frombuffer(memory, _ROW)
        self.server, self.servers = server, len(rows)
        self._counts, self._published = rows["counts"], rows["published"]
        self._cells = [memoryview(cells).cast("B") for cells in rows["cells"]]
        self._read = self._published.tolist()
        """Chunks of each server that were read so far."""
        # Faster than numpy's own access to one number.
        own: Any = [memoryview(row) for row in self._counts[server]]
        self.tokens, self.requests = own

    def totals(self, ranks: int) -> list[list[int]]:
        """Tokens and requests of the first ranks, of all servers."""
        return self._counts[:, :, :ranks].sum(axis=0).tolist()

    def publish(self, rank: int, keys: Keys) -> None:
        """Tells the others that a rank has computed a prompt."""
        first, cells = int(self._published[self.server]), self._cells[self.server]
        place = rank.to_bytes(2, "big")
        for number, key in enumerate(reversed(keys), first):
            start = 16 * (number % CELLS)
            cells[start : start + 16] = place + key  # type: ignore[operator]
        self._published[self.server] = first + len(keys)

    def read_others(self) -> Iterator[tuple[int, bytes]]:
        """Ranks and keys of new chunks of others, the last of a prompt first."""
        published = self._published.tolist()
        if published == self._read:
            return
        before, self._read = self._read, published
        for server, (start, end) in enumerate(zip(before, published, strict=True)):
            if server == self.server:
                continue
            for number in range(max(start, end - CELLS), end):
                cell = bytes(self._cells[server][16 * (number % CELLS) :][:16])
                yield int.from_bytes(cell[:2], "big"), cell[2:]
