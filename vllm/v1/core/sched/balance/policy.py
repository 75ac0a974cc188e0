# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""When data parallel ranks admit prefills, as pure functions of a snapshot.

Pure Python: no torch, no vllm import, no clock, no randomness. Every rank calls the
same function on the same snapshot and so takes the same decision.
"""

from collections.abc import Callable
from typing import NamedTuple

from .rows import Snapshot


class Decision(NamedTuple):
    """What every rank may do in the next step."""

    admit: bool
    """Whether waiting requests may be admitted."""
    prefill_tokens: int | None
    """Prompt tokens that a rank may schedule, of prompts in progress and of
    admissions together; None for no limit beyond the scheduler's own."""
    reason: str
    """Why, as a label for metrics."""


OPEN = Decision(admit=True, prefill_tokens=None, reason="open")
"""Schedule as if there were no balance scheduling."""


def cap(snapshot: Snapshot) -> Decision:
    """Nobody admits while the running queue of any rank is full.

    The rule of the vllm-ascend balance scheduler (vllm-ascend #5212): freeze
    admission while ``max(running) == max_num_seqs``. Prompts in progress go on.
    """
    if any(
        running >= limit
        for running, limit in zip(snapshot.running, snapshot.max_running, strict=True)
    ):
        return Decision(admit=False, prefill_tokens=None, reason="rank_full")
    return OPEN


Policy = Callable[[Snapshot], Decision]

POLICIES: dict[str, Policy] = {"cap": cap}
"""By the value of `--data-parallel-balance`; "off" has no policy."""
