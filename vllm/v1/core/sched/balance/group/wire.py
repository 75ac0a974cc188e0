# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Rows as they are sent: their fields and a checksum. Pure Python."""

from collections.abc import Iterable, Sequence
from struct import Struct
from zlib import crc32

from ..policies.rows import Row

WIDTH = len(Row._fields) + 1
"""Integers of 64 bits per row."""

_FIELDS = Struct(f"<{len(Row._fields)}q")


def encode(row: Row) -> list[int]:
    """The integers to send."""
    return [*row, crc32(_FIELDS.pack(*row))]


def decode(received: Iterable[Sequence[int]]) -> list[Sequence[int]]:
    """The rows, in rank order.

    Args:
        received: what `encode` returned on each rank.

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
