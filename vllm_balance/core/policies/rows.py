# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the data parallel ranks tell each other once per step."""

from collections import namedtuple
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

SECONDS = 1e-6
"""Seconds of a microsecond, in which rows have times."""


class Row(NamedTuple):
    """One rank's state after a step. All fields are integers (int64 on the wire)."""

    wave: int
    """Number of the wave of requests that is being served."""
    step: int
    """Number of the step within the wave. Equal on all ranks, or the gather
    matched the calls of different steps."""
    running: int
    """Requests in the running queue."""
    decoding: int
    """Those of them whose prompt is complete."""
    ended: int
    """Requests that decoded at the previous exchange and are finished. Those that were
    preempted are not."""
    waiting: int
    """Requests in the waiting queues."""
    pending: int
    """Requests that could prefill in the next step: prompts in progress, and
    waiting requests that fit in the free slots and the free KV cache blocks."""
    pending_tokens: int
    """Prompt tokens that the pending requests have left to compute."""
    prefill_tokens: int
    """Prompt tokens of the step that was scheduled last; see `in_flight.py`."""
    step_time_us: int
    """Time since the previous exchange ended, in microseconds; 0 in the first step."""
    pending_age_us: int
    """Time since the oldest of the pending requests became pending, in microseconds;
    0 without any."""
    pending_attended: int
    """Tokens that the pending tokens attend to: n·(p + n/2) of n at position p."""
    prefill_attended: int
    """The same of the prompt tokens of the step that was scheduled last."""
    ticket: int = 0
    """The newest request to switch that the rank has heard of; see `switch_ticket`."""
    in_time_age_us: int = 0
    """With a limit of first tokens: time since the oldest of the pending requests came
    whose first token is not late yet, in microseconds; 0 without any."""


class Limits(NamedTuple):
    """What a rank says once to each new group. They may differ between ranks."""

    max_running: int
    """Requests in the running queue."""
    max_tokens: int
    """Tokens scheduled in one step."""


if TYPE_CHECKING:

    class _Columns(tuple[tuple[int, ...], ...]):
        _fields: tuple[str, ...]

        def __init__(self, *args: Any, **fields: Any) -> None: ...

        def __getattr__(self, field: str) -> Any: ...

else:
    _Columns = namedtuple("_Columns", Row._fields + Limits._fields)


class Snapshot(_Columns):
    """The rows and limits of all ranks, by column: each field has one value per rank.

    A named tuple with the fields of `Row`, then those of `Limits`, each a tuple of
    integers in rank order.
    Immutable, and identical on every rank: whatever is computed from a snapshot
    alone is the same everywhere.
    """

    __slots__ = ()

    @classmethod
    def from_rows(
        cls, rows: Iterable[Sequence[int]], limits: Iterable[Sequence[int]]
    ) -> "Snapshot":
        """Transposes rows and limits, both in rank order.

        Raises:
            RuntimeError: the rows are of different steps or waves, so that the
                collective calls of the ranks no longer match.
        """
        snapshot = cls(*zip(*rows, strict=True), *zip(*limits, strict=True))
        if len(set(snapshot.step)) != 1 or len(set(snapshot.wave)) != 1:
            at = ", ".join(
                f"rank {rank}: wave {wave} step {step}"
                for rank, (wave, step) in enumerate(
                    zip(snapshot.wave, snapshot.step, strict=True)
                )
            )
            raise RuntimeError(
                "Data parallel balance: the ranks exchanged rows of different steps "
                f"({at}). Their collective calls no longer match; restart all ranks "
                "with the same version and arguments."
            )
        return snapshot
