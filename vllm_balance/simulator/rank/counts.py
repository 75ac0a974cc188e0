# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the ranks tell of themselves to what sends requests to them."""

from collections.abc import Sequence
from typing import NamedTuple


class RankCounts(NamedTuple):
    """What a rank tells about its queues."""

    waiting: int
    running: int
    kv_usage: float = 0.0
    """Share of the KV cache's blocks that requests hold; told since vLLM 0.30."""


Counts = Sequence[RankCounts]
"""Of every rank."""
