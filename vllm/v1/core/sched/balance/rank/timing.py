# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""When the rows of the ranks travel: after a step or before it, and seldom if off."""

import time
from collections.abc import Callable
from typing import TypeAlias

import torch.distributed as dist
from vllm.v1.core.sched.balance.rank.group import RowExchange

from vllm_balance.core.policies.rows import Limits, Row, Snapshot

MakeRow = Callable[[], Row]
Group: TypeAlias = dist.ProcessGroup | None

EXCHANGE_EVERY_WHEN_OFF = 32
"""Steps between two exchanges while nothing can be held: as often as upstream's ranks
agree whether a wave has ended."""


class Timing:
    """Rows travel when the step that they tell of has ended on all ranks.

    With `sends_early` they travel while it is computed.
    """

    def __init__(self, exchange: RowExchange, sends_early: bool = False) -> None:
        self.exchange, self._sends_early = exchange, sends_early
        self.group: Group = None
        """The one that was joined last."""
        self._is_off = self._is_first = False
        self.reset()

    def reset(self) -> None:
        """Forgets the steps so far, as at the end of a wave or of a lost group.

        Also a row on its way: ranks of its group may have left or been lost.
        """
        self.waits_since = 0.0
        """When this rank began to wait for rows, in seconds of `time.monotonic`."""
        self._is_sent = False

    def set_off(self, is_off: bool) -> None:
        """Whether no rank can hold anything before the next exchange."""
        self._is_off = is_off

    def join(
        self, group: Group, limits: Limits, tell_clients: Callable[[], None]
    ) -> None:
        """Follows this group from now on; the first step in it is exchanged."""
        self.exchange.join(group, limits, tell_clients, self._sends_early)
        self.group = group
        self._is_first = True
        self.reset()

    def _skips_exchange(self, step: int) -> bool:
        return self._is_off and step % EXCHANGE_EVERY_WHEN_OFF != 1

    def _is_early(self, group: Group, step: int) -> bool:
        # Not if the ranks may have met in another group.
        is_joined = group is self.group
        return self._sends_early and is_joined and not self._skips_exchange(step)

    def before_step(self, group: Group, step: int, make_row: MakeRow) -> None:
        """A step is about to be computed, of a wave that all ranks are in."""
        if self._is_early(group, step):
            self._send(make_row)

    def after_step(self, wave: int, step: int, make_row: MakeRow) -> Snapshot | None:
        """All ranks have ended a step; their rows, or None if no rank sends one."""
        is_first, self._is_first = self._is_first, False
        if self._skips_exchange(step) and not is_first:
            self.exchange.skip(wave, step)
            return None
        return self._exchange(make_row)

    def _send(self, make_row: MakeRow) -> None:
        if not self._is_sent:  # between two waves a step may not come to its end
            self.exchange.send(make_row())
            self._is_sent = True

    def _exchange(self, make_row: MakeRow) -> Snapshot:
        self._send(make_row)
        self._is_sent = False
        self.waits_since = time.monotonic()
        return self.exchange.receive()

    def end_wave(self, group: Group, wave: int, step: int, make_row: MakeRow) -> None:
        """All ranks have ended the last step of a wave, and need no decision."""
        if self._is_early(group, step):
            self._exchange(make_row)  # others may have sent; nobody reads it
        self.exchange.end_wave(wave, step)
        self.reset()
