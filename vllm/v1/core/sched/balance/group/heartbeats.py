# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the ranks of a group say of themselves, and who among them is late or silent.

Pure Python; the clock is given.
"""

from collections.abc import Mapping
from typing import NamedTuple

from .status_file import LONG_S

PATIENCE_BEATS = 4
"""A rank is silent if its heartbeat stands still while that of the reader, in the same
store, advances by as many: a store that is slow is so for both."""

LEFT, FAILED = "left", "failed"
"""The last heartbeat of a rank that ends, and of one that ends by its own fault."""

_MOST_LATE = 16


class _Heard(NamedTuple):
    said: str
    """A count of beats, the wave and the step that the rank has come to; or how it
    left; empty before its first."""
    changed: float
    """Seconds, when the reader found it first."""
    beats: int
    """How many the reader had written by then."""

    @property
    def position(self) -> tuple[int, int] | None:
        """Wave and step; None if the rank has left, or not come yet."""
        words = self.said.split()[1:]
        return (int(words[0]), int(words[1])) if words else None


class Heartbeats:
    """Keeps the heartbeats of all ranks of a group, as one of them has read them."""

    def __init__(self, rank: int, size: int) -> None:
        """Nothing has been read.

        Args:
            rank: the reader.
            size: number of the ranks.
        """
        self._rank, self._size = rank, size
        self._heard: dict[int, _Heard] = {}
        self._beats = 0

    def hear(self, said: Mapping[int, str], beats: int, now: float) -> None:
        """Notes what the store has.

        Args:
            said: the last heartbeat of each rank that has one.
            beats: those of this rank that had come to the store.
            now: seconds of a clock that does not go back.
        """
        before = self._heard
        self._heard = {
            rank: before[rank]
            if rank in before and before[rank].said == said.get(rank, "")
            else _Heard(said.get(rank, ""), now, beats)
            for rank in range(self._size)
        }
        self._beats = beats

    def silent(self, since: float) -> list[int]:
        """The other ranks whose heartbeat has stood still since that time."""
        return [
            rank
            for rank, heard in self._heard.items()
            if rank != self._rank
            and heard.said not in (LEFT, FAILED)
            and self._beats - heard.beats >= PATIENCE_BEATS
            and heard.changed <= since
        ]

    def that_said(self, *words: str) -> list[int]:
        """The ranks whose last heartbeat is one of these."""
        return [rank for rank, heard in self._heard.items() if heard.said in words]

    def behind(self, position: tuple[int, int]) -> list[int]:
        """The ranks that are there, and have not come as far as that wave and step."""
        return [
            rank
            for rank, heard in self._heard.items()
            if heard.position is not None and heard.position < position
        ]

    def late(
        self, position: tuple[int, int], now: float
    ) -> dict[str, tuple[tuple[int, int] | None, float]]:
        """The ranks that are not as far, or whose heartbeat stands still.

        Returns:
            By rank: the position, and since when. At most 16, the longest first.
        """
        found = [
            (heard.changed, rank, heard.position)
            for rank, heard in self._heard.items()
            if (heard.said and (heard.position or (-1, -1)) < position)
            or now - heard.changed > 2 * LONG_S
        ]
        return {
            str(rank): (place, changed)
            for changed, rank, place in sorted(found)[:_MOST_LATE]
        }
