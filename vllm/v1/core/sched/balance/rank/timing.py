# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""When the rows of the ranks travel: after a step or before it, and seldom if off."""

import time
from collections.abc import Callable
from typing import ClassVar, TypeAlias

import torch.distributed as dist
from vllm.v1.core.sched.balance.rank.group import RowExchange

from vllm_balance.core.policies.rows import Limits, Row, Snapshot

MakeRow = Callable[[], Row]
Group: TypeAlias = dist.ProcessGroup | None

EXCHANGE_EVERY_WHEN_OFF = 32
"""Steps between two exchanges while nothing can be held: as often as upstream's ranks
agree whether a wave has ended."""


class AfterStep:
    """Rows travel when the step that they tell of has ended on all ranks."""

    _own_connections: ClassVar[bool] = False
    """Whether a row may travel while the ranks' group does something else."""

    def __init__(self, exchange: RowExchange) -> None:
        self.exchange = exchange
        self.group: Group = None
        """The one that was joined last."""
        self._is_off = False
        self._is_first = False
        self.reset()

    def reset(self) -> None:
        """Forgets the steps so far, as at the end of a wave or of a lost group."""
        self.waits_since = 0.0
        """When this rank began to wait for rows, in seconds of `time.monotonic`."""

    def set_off(self, is_off: bool) -> None:
        """Whether no rank can hold anything before the next exchange."""
        self._is_off = is_off

    def join(
        self, group: Group, limits: Limits, tell_clients: Callable[[], None]
    ) -> None:
        """Follows this group from now on; the first step in it is exchanged."""
        self.exchange.join(group, limits, tell_clients, self._own_connections)
        self.group = group
        self._is_first = True
        self.reset()

    def _skips_exchange(self, step: int) -> bool:
        return self._is_off and step % EXCHANGE_EVERY_WHEN_OFF != 1

    def before_step(self, group: Group, step: int, make_row: MakeRow) -> None:
        """A step is about to be computed, of a wave that all ranks are in."""

    def after_step(self, wave: int, step: int, make_row: MakeRow) -> Snapshot | None:
        """All ranks have ended a step.

        Returns:
            Their rows; None in a step after which no rank sends one.
        """
        is_first, self._is_first = self._is_first, False
        if self._skips_exchange(step) and not is_first:
            self.exchange.skip(wave, step)
            return None
        return self._exchange(make_row)

    def _exchange(self, make_row: MakeRow) -> Snapshot:
        self.exchange.send(make_row())
        self.waits_since = time.monotonic()
        return self.exchange.receive()

    def end_wave(self, group: Group, wave: int, step: int, make_row: MakeRow) -> None:
        """All ranks have ended the last step of a wave, and need no decision."""
        self.exchange.end_wave(wave, step)
        self.reset()


class BeforeStep(AfterStep):
    """Rows travel while the step that they tell of is computed."""

    _own_connections = True

    def reset(self) -> None:
        """Also a row on its way: ranks of its group may have left or been lost."""
        super().reset()
        self._is_sent = False

    def before_step(self, group: Group, step: int, make_row: MakeRow) -> None:
        """Sends this rank's row, unless the ranks may have met in another group."""
        if group is self.group and not self._skips_exchange(step):
            self._send(make_row)

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
        """Exchanges rows that other ranks may have sent already; nobody reads them."""
        if group is self.group and not self._skips_exchange(step):
            self._exchange(make_row)
        super().end_wave(group, wave, step, make_row)
