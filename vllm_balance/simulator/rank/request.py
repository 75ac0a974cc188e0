# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A request in its rank, and the cached pieces of its prompt."""

from dataclasses import dataclass, field

from ..requests.request import SimRequest
from .limits import BLOCK_SIZE


@dataclass(slots=True, eq=False)
class Piece:
    """Blocks of the KV cache that are cached and freed together."""

    blocks: int
    chunk: int = 0
    """Number of the shared chunk that they hold; 0 if no request can find them."""
    users: int = 0
    """Requests that use them."""


@dataclass(slots=True, eq=False)
class RankRequest:
    """A request in a rank; attributes of vLLM's `Request` have their names."""

    request: SimRequest
    request_id: str
    arrival_time: float
    num_computed_tokens: int = 0
    """Not kept up to date while it decodes."""
    num_output_tokens: int = 0
    """Not kept up to date while it decodes."""
    num_blocks: int = 0
    """Blocks of the KV cache that it uses, without those of its growing answer."""
    ends: int = 0
    """While it decodes without drafts, the step that computes its last token."""
    ended: bool = False
    """Whether the step of its last token was scheduled."""
    preempted: bool = False
    """Whether it was ever preempted."""
    # The rest is only for prompts with shared prefixes.
    chunks: list[int] = field(default_factory=list)
    """Numbers of the beginnings of its prompt, as `kv_cache.Chunks` gives them."""
    pieces: list[Piece] = field(default_factory=list)
    """The cached pieces of its first chunks, which it uses."""
    num_shared: int = 0
    """Blocks of these pieces."""

    @property
    def num_tokens(self) -> int:
        """Tokens of prompt and answer so far."""
        return self.request.prompt_len + self.num_output_tokens

    @property
    def most_computed(self) -> int:
        """Computed tokens when it has ended."""
        return self.request.prompt_len + self.request.output_len - 1

    def blocks_before(self, index: int) -> int:
        """Full blocks up to the beginning of one of its chunks."""
        tokens = min(self.request.prompt_len, index * self.request.chunk_size)
        return tokens // BLOCK_SIZE

    def chunk_blocks(self, index: int) -> int:
        """Blocks that end in one of its chunks."""
        return self.blocks_before(index + 1) - self.blocks_before(index)
