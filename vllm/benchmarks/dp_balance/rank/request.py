# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A request as its rank knows it."""

from ..requests.workload import SimRequest
from .limits import BLOCK_SIZE

Key = tuple[int, int]
"""What a full block holds: the chunk of shared text in which it ends, or the request
that it is of, and its place in the prompt and answer. Equal keys mean equal tokens, up
to the block's end. Requests have negative numbers, for no two answers are alike."""


class Block:
    """A block of the KV cache of a rank whose prompts share beginnings."""

    __slots__ = ("key", "uses")

    def __init__(self) -> None:
        self.key: Key | None = None
        """What it holds, if it is full and known."""
        self.uses = 1
        """Requests that use it."""


class RankRequest:
    """A request in a rank; what vLLM's `Request` has too is named as there."""

    __slots__ = (
        "arrival_time",
        "blocks",
        "chunks",
        "ended",
        "ends",
        "keys",
        "name",
        "num_cached_blocks",
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
        # The rest only where prompts share beginnings.
        self.chunks: list[int] = []
        """Numbers of the beginnings of its prompt, as `kv_cache.Chunks` gives them."""
        self.blocks: list[Block] = []
        """Those of the KV cache that it uses."""
        self.num_cached_blocks = 0
        """Those of them that have a key, from the first on."""
        self.keys: list[Key] = []
        """Those of all its blocks, once they are full."""

    @property
    def num_tokens(self) -> int:
        """What has to be computed before the next token: prompt and answer so far."""
        return self.request.prompt_len + self.num_output_tokens

    @property
    def most_computed(self) -> int:
        """Computed tokens once it has ended."""
        return self.request.prompt_len + self.request.output_len - 1

    @property
    def most_hits(self) -> int:
        """Blocks that need not be computed if they are cached; the last token must."""
        return (self.num_tokens - 1) // BLOCK_SIZE
