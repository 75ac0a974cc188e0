# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the run loop needs of the ranks, whether they are modelled or real."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from vllm.v1.core.sched.balance.policies.by_name import Decision
from vllm.v1.core.sched.balance.policies.rows import Snapshot

from ..errors import UsageError
from ..front_end.coordinator import Counts
from ..requests.workload import SimRequest
from ..step_time.model import Loads
from .prefix_cache import BLOCK_SIZE


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
    """Blocks of 16 tokens in the KV cache of a rank; None for as many as could ever
    be needed."""

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
        """Refuses a KV cache that cannot hold the longest request.

        Args:
            tokens: of its prompt and output.

        Raises:
            UsageError: it cannot.
        """
        # One block more than is used: vLLM keeps a null block.
        needed = -(-tokens // BLOCK_SIZE) + 1
        if self.kv_blocks is not None and self.kv_blocks < needed:
            raise UsageError(
                f"--num-gpu-blocks {self.kv_blocks}: a request of {tokens} tokens "
                f"needs {needed} blocks of {BLOCK_SIZE}."
            )


class Outcome(NamedTuple):
    """What a step brought."""

    first: list[SimRequest]
    """Requests whose prompt is done and that got their first token."""
    done: list[SimRequest]
    """Requests that got their last token."""


class Engine(Protocol):
    """All ranks together.

    One step is `schedule`, `update`, then `exchange` and `decide`, or `end_wave`; that
    is the order of vLLM's busy loop.
    """

    @property
    def held(self) -> Sequence[bool]:
        """Per rank: whether an admissible request was held back in the step."""
        ...

    def add(self, rank: int, request: SimRequest) -> None:
        """Hands a request to a rank."""
        ...

    def has_work(self) -> bool:
        """Whether any rank has an unfinished request."""
        ...

    def backlogs(self) -> Counts:
        """What the ranks tell the coordinator for a dispatch by tokens.

        Their prompt tokens stand where waiting requests are counted, and their
        requests in flight where running ones are.
        """
        ...

    def counts(self) -> Counts:
        """What the ranks tell the coordinator."""
        ...

    def schedule(self) -> Loads:
        """Starts a step on every rank."""
        ...

    def update(self) -> Outcome:
        """Ends the step."""
        ...

    def exchange(self, wave: int, step: int, now: float) -> Snapshot:
        """The rows of all ranks.

        Args:
            wave: number of the wave.
            step: number of the step that has ended, from 1.
            now: virtual seconds.
        """
        ...

    def decide(self, decisions: Decision | Sequence[Decision]) -> None:
        """Sets what every rank, or each rank, may do in the next step."""
        ...

    def end_wave(self) -> None:
        """Forgets the decision and the holds."""
        ...
