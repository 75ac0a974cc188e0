# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The limits of a rank: requests and tokens of a step, and blocks of its KV cache."""

from dataclasses import dataclass
from itertools import pairwise

from ...errors import UsageError

BLOCK_SIZE = 16
"""Tokens in a block of the KV cache."""


def blocks_of(tokens: int) -> int:
    """Blocks of the KV cache that hold a number of tokens."""
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
    acceptance_rates: tuple[float, ...] = ()
    """With speculation, by position of a draft the probability that it and those before
    it are accepted."""

    def __post_init__(self) -> None:
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise UsageError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens}: less than "
                f"--max-num-seqs {self.max_num_seqs}, which vLLM refuses too."
            )
        rates = 1.0, *self.acceptance_rates
        if any(not 0 <= rate <= last for last, rate in pairwise(rates)):
            raise UsageError(
                f"--synthetic-acceptance-rates {','.join(map(str, rates[1:]))}: give "
                "chances from 0 to 1, none more than the one before it."
            )
        per_request = 1 + self.num_speculative_tokens
        if self.max_num_batched_tokens < self.max_num_seqs * per_request:
            raise UsageError(
                f"--max-num-batched-tokens {self.max_num_batched_tokens}: not enough "
                f"for {self.max_num_seqs} requests with their drafts, which the model "
                "does not cut."
            )

    @property
    def num_speculative_tokens(self) -> int:
        """Drafts of a request in a step."""
        return len(self.acceptance_rates)

    def check_longest(self, tokens: int) -> None:
        """Refuses a KV cache that cannot hold a request of this length.

        Raises:
            UsageError: the KV cache is too small.
        """
        # With drafts in flight and ahead, and vLLM's null block.
        needed = blocks_of(tokens + 3 * self.num_speculative_tokens) + 1
        if self.kv_blocks is not None and self.kv_blocks < needed:
            raise UsageError(
                f"--num-gpu-blocks {self.kv_blocks}: a request of {tokens} tokens "
                f"needs {needed} blocks of {BLOCK_SIZE}."
            )
