# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The fast engine for ranks whose KV cache can fill."""

import sys

from .blocks import Blocks, CachedBlocks
from .engine import RankLimits
from .rank import LimitedRank
from .ranks import RankEngine


class LimitedEngine(RankEngine):
    """All ranks, each an object: preemption is a matter of single requests."""

    def __init__(
        self,
        limits: RankLimits,
        max_model_len: int,
        ttft_budget: float | None = None,
        async_scheduling: bool = False,
        shared_prefixes: bool = False,
    ) -> None:
        """Makes empty ranks.

        Args:
            limits: the limits of each rank.
            max_model_len: the longest request, prompt and output, in tokens.
            ttft_budget: what the gate of a server would be told, in seconds.
            async_scheduling: whether a step is scheduled before the last has ended.
            shared_prefixes: whether prompts share beginnings: then all are cached.

        Raises:
            UsageError: the KV cache cannot hold the longest request.
        """
        limits.check_longest(max_model_len)

        def new_blocks() -> Blocks:
            count = (limits.kv_blocks or sys.maxsize) - 1  # vLLM keeps a null block
            if shared_prefixes:
                return CachedBlocks(count, async_scheduling)
            return Blocks(count)

        super().__init__(
            [
                LimitedRank(
                    limits, new_blocks(), max_model_len, ttft_budget, async_scheduling
                )
                for _ in range(limits.ranks)
            ]
        )
