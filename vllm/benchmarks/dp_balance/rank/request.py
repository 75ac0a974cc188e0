# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A request as its rank knows it."""

from dataclasses import dataclass, field

from ..requests.request import SimRequest
from .limits import BLOCK_SIZE

Key = tuple[int, int]
"""What a full block holds: the chunk of shared text in which it ends, or the request
that it is of, and its place in the prompt and answer. Equal keys mean equal tokens, up
to the block's end. Requests have negative numbers, for no two answers are alike."""


@dataclass(slots=True, eq=False)
class Block:
    """A block of the KV cache of a rank whose prompts share beginnings."""

    key: Key | None = None
    """What it holds, if it is full and known."""
    uses: int = 1
    """Requests that use it."""


@dataclass(slots=True, eq=False)
class RankRequest:
    """A request in a rank; what vLLM's `Request` has too is named as there."""

    request: SimRequest
    name: str
    arrival_time: float
    num_computed_tokens: int = 0
    """Not kept up to date while it decodes."""
    num_output_tokens: int = 0
    """Not kept up to date while it decodes."""
    ends: int = 0
    """The step that computes its last token."""
    ended: bool = False
    """Whether that step was scheduled."""
    phase: int = 0
    """It needs a new block in the steps that are -phase modulo the block size."""
    preempted: bool = False
    """Whether it ever was."""
    # The rest only where prompts share beginnings.
    chunks: list[int] = field(default_factory=list)
    """Numbers of the beginnings of its prompt, as `kv_cache.Chunks` gives them."""
    blocks: list[Block] = field(default_factory=list)
    """Those of the KV cache that it uses."""
    num_cached_blocks: int = 0
    """Those of them that have a key, from the first on."""
    keys: list[Key] = field(default_factory=list)
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
