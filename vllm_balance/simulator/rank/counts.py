# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The counts that ranks report to load balancers."""

from collections.abc import Sequence
from typing import NamedTuple


class RankCounts(NamedTuple):
    """The lengths of a rank's queues, and the use of its KV cache."""

    waiting: int
    running: int
    kv_usage: float = 0.0
    """Share of the KV cache's blocks in use; reported since vLLM 0.30."""


Counts = Sequence[RankCounts]
"""The counts of every rank."""
