# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A request as a rank with a limited KV cache knows it."""

from .prefix_cache import BLOCK_SIZE
from .workload import SimRequest


def blocks_of(tokens: int) -> int:
    """Blocks of the KV cache that hold so many tokens."""
    return -(-tokens // BLOCK_SIZE)


class LimitedRequest:
    """A request in a rank; what vLLM's `Request` has too is named as there."""

    __slots__ = (
        "arrival_time",
        "ended",
        "ends",
        "name",
        "num_computed_tokens",
        "num_output_tokens",
        "phase",
        "request",
    )

    def __init__(self, request: SimRequest) -> None:
        self.request = request
        self.name = str(request.index)
        self.arrival_time = request.sent
        self.num_computed_tokens = 0
        """Not kept up to date while it decodes."""
        self.num_output_tokens = 0
        """Not kept up to date while it decodes."""
        self.ends = 0
        """The step that computes its last token."""
        self.ended = False
        """Whether that step was scheduled."""
        self.phase = 0
        """It needs a new block in the steps that are -phase modulo the block size."""

    @property
    def num_tokens(self) -> int:
        """What has to be computed before the next token: prompt and answer so far."""
        return self.request.prompt_len + self.num_output_tokens

    @property
    def most_computed(self) -> int:
        """Computed tokens once it has ended."""
        return self.request.prompt_len + self.request.output_len - 1
