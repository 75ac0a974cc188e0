# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Keeps the signals of forked processes out of the front-end's event loop.

An event loop hears of signals through a file descriptor, which `fork` copies. When a
rank has died, the front-end ends the other engines and the coordinator by SIGTERM;
with the copy it takes each of these for a SIGTERM of its own, stops listening to its
engines, and waits for clients who wait for answers that nobody gives any more.
"""

import os
import signal
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import VllmConfig


def untie_forked_signals(vllm_config: "VllmConfig") -> None:
    """If balance is on, makes processes forked from now on forget the descriptor.

    An event loop that a child starts later sets one of its own.
    """
    if vllm_config.parallel_config.data_parallel_balance != "off":
        _install()


@cache
def _install() -> None:
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
