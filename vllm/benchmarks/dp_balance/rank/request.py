# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A request as its rank knows it."""

from bisect import bisect_left
from dataclasses import dataclass, field

from ..requests.request import SimRequest
from .limits import BLOCK_SIZE

Key = tuple[int, int]
"""What a full block holds: the chunk of shared text in which it ends, or the request
that it is of, and its place in the prompt and answer. Equal keys mean equal tokens, up
to the block's end. Requests have negative numbers, for no two answers are alike."""


@dataclass(slots=True, eq=False)
class RankRequest:
    """A request in a rank; what vLLM's `Request` has too is named as there."""

    request: SimRequest
    request_id: str
    arrival_time: float
    num_computed_tokens: int = 0
    """Not kept up to date while it decodes."""
    num_output_tokens: int = 0
    """Not kept up to date while it decodes."""
    num_blocks: int = 0
    """Blocks of the KV cache that it uses."""
    ends: int = 0
    """The step that computes its last token; with drafts the last one so far."""
    past: tuple[int, int, int] = (0, 0, 0)
    """With drafts, tokens of its answer after that step and the two before it."""
    ended: bool = False
    """Whether that step was scheduled."""
    phase: int = 0
    """It needs a new block in the steps that are -phase modulo the block size."""
    preempted: bool = False
    """Whether it ever was."""
    # The rest only where prompts share beginnings.
    chunks: list[int] = field(default_factory=list)
    """Numbers of the beginnings of its prompt, as `kv_cache.Chunks` gives them."""
    shared_blocks: int = 0
    """Blocks in which these end, from the first on; the others are its own."""
    runs: list["Run"] = field(default_factory=list)
    """Blocks of the KV cache that it uses."""
    source: "Source" = field(init=False)
    """Of those that it did not find."""
    num_cached_blocks: int = 0
    """Those that have a key, from the first on."""

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

    def key(self, index: int) -> Key:
        """Of one of its blocks, once it is full."""
        if index >= self.shared_blocks:
            return -1 - self.request.index, index
        end = (index + 1) * BLOCK_SIZE - 1
        return self.chunks[end // self.request.chunk_size], index


class Source:
    """A time that a request runs: when it is started anew, its blocks are others."""

    def __init__(self, work: RankRequest) -> None:
        """Begins one of a request."""
        self.key = work.key


@dataclass(slots=True, eq=False)
class Run:
    """Blocks of the KV cache that follow on each other in a prompt or answer.

    Whoever uses one of them uses all.
    """

    source: Source
    """Whose they were when they were filled."""
    start: int
    """Place of the first one in the prompt."""
    stop: int
    """One more than that of the last."""
    cached: int
    """Up to there they are full and known."""
    users: list[RankRequest]
    freed: int = 0
    """When they were freed, counted up, if nobody uses them; else 0."""
    has_equals: bool = False
    """Whether other blocks had the key of one of them."""

    def same_until(self, work: RankRequest, start: int, most: int) -> int:
        """Where the equal blocks end, at most at `most`.

        Args:
            work: a request with the block at `start`.
            start: one of its blocks.
            most: blocks of the request that can be found.
        """
        key, stop = self.source.key, min(self.cached, most)
        if key(stop - 1) == work.key(stop - 1):
            return stop
        # Equal blocks have equal ones before them.
        return start + bisect_left(
            range(start, stop), True, key=lambda index: key(index) != work.key(index)
        )
