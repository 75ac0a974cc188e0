# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Keeps the signals of forked processes out of the front-end's event loop.

An event loop hears of signals through a file descriptor, which `fork` copies. When a
rank has died, the front-end ends the other engines and the coordinator by SIGTERM;
with the copy it takes each of these for a SIGTERM of its own, stops listening to its
engines, and waits for clients who wait for answers that nobody gives any more.

Imports nothing of vllm: `vllm.config` imports this module.
"""

import os
import signal
from functools import cache


@cache
def untie_forked_signals() -> None:
    """Makes every process that this one forks from now on forget the descriptor.

    An event loop that a child starts later sets one of its own.
    """
    os.register_at_fork(after_in_child=lambda: signal.set_wakeup_fd(-1))
