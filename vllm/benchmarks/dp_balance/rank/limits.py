# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a rank may do in a step, and how much its KV cache holds."""

from dataclasses import dataclass

from ..errors import UsageError

BLOCK_SIZE = 16
"""Tokens in a block of the KV cache."""


def blocks_of(tokens: int) -> int:
    """Blocks of the KV cache that hold so many tokens."""
    return -(-tokens // BLOCK_SIZE)


@dataclass(frozen=True)
class RankLimits:
    """The scheduler's limits, the same on every rank."""

    ranks: int
    """Data parallel size."""
    max_num_seqs: int
    """Requests in the running queue."""
    max_num_batched_tokens: int
    """Tokens in one step."""
    kv_blocks: int | None = None
    """Blocks of 16 tokens in the KV cache of a rank; None if it never fills."""

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise UsageError(f"--data-parallel-size {self.ranks}: give 1 or more.")
        if self.max_num_seqs < 1:
            raise UsageError(f"--max-num-seqs {self.max_num_seqs}: give 1 or more.")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens}: less than "
                f"--max-num-seqs {self.max_num_seqs}, which vLLM refuses too."
            )

    def check_longest(self, tokens: int) -> None:
        """Refuses a KV cache that cannot hold a request of so many tokens.

        Raises:
            UsageError: it cannot.
        """
        # One block more than is used: vLLM keeps a null block.
        needed = blocks_of(tokens) + 1
        if self.kv_blocks is not None and self.kv_blocks < needed:
            raise UsageError(
                f"--num-gpu-blocks {self.kv_blocks}: a request of {tokens} tokens "
                f"needs {needed} blocks of {BLOCK_SIZE}."
            )
