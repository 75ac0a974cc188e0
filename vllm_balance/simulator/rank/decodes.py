# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The requests of a rank that decode: counted, until the step in which one ends."""

import math

from .limits import blocks_of
from .request import RankRequest


class Decodes:
    """Requests that compute a token in each step."""

    per_request = 1
    """Tokens that one computes in a step."""
    _ahead = 1
    """Tokens of one that need a place in the KV cache beside those that it has."""

    def __init__(self) -> None:
        self.count = 0
        """Requests that compute in the next step."""
        self.context = 0
        """Tokens that these attend to."""
        self.wasted = 0
        """Tokens of the last step that bring none of an answer."""
        self._begun = 0
        """Tokens that these had when they began."""
        self._ending: dict[int, list[RankRequest]] = {}
        """Requests by the step of their last token."""

    @property
    def next_end(self) -> float:
        """The step in which one ends next."""
        return min(self._ending, default=math.inf)

    @property
    def tokens(self) -> int:
        """Tokens that all compute in the next step."""
        return self.count * self.per_request

    @property
    def blocks(self) -> int:
        """Blocks that all need for the next step, beside those with which they began.

        Each has filled a part of its last one, on average a half, then as now; so it is
        not looked at who needs another.
        """
        return blocks_of(self.context - self._begun + self.count * self._ahead)

    def begin(self, work: RankRequest, step: int) -> None:
        """A prompt is complete in a step, and tokens are missing after it."""
        work.ends = step + work.request.output_len - work.num_output_tokens - 1
        self._ending.setdefault(work.ends, []).append(work)
        self._add(work)

    def _add(self, work: RankRequest) -> None:
        self.count += 1
        self.context += work.num_tokens
        self._begun += work.num_tokens

    def _remove(self, work: RankRequest, computed: int) -> None:
        self.count -= 1
        self.context -= computed
        self._begun -= work.num_tokens

    def preempt(self, work: RankRequest, step: int) -> None:
        """Takes one out before a step; its tokens are counted in the request again."""
        passed = self.output_tokens(work, step - 1)
        self._ending[work.ends].remove(work)
        work.ends = 0
        self._end(work, passed)

    def _end(self, work: RankRequest, passed: int) -> None:
        computed = work.request.prompt_len + passed - 1
        self._remove(work, computed)
        work.num_output_tokens, work.num_computed_tokens = passed, computed

    def output_tokens(self, work: RankRequest, step: int) -> int:
        """Tokens of the answer that one has after a step, the last that was scheduled.

        A front-end knows them a step later where steps are scheduled ahead.
        """
        if not work.ends:
            return work.num_output_tokens
        return work.request.output_len - (work.ends - step)

    def advance(self, step: int) -> list[RankRequest]:
        """Ends a step; returns who got the last token in it."""
        self.context += self.count
        done = self._ending.pop(step, [])
        for work in done:
            self._remove(work, work.most_computed)
        return done


class DraftedDecodes(Decodes):
    """Requests that also compute drafts in each step, of which some are accepted.

    Drafts need look-ahead slots in the KV cache, and with asynchronous scheduling
    others for those of the step that has not ended. Only after another step it is then
    known which one brought the last token.
    """

    def __init__(self, drafts: int, async_scheduling: bool) -> None:
        """The number of drafts in each step."""
        super().__init__()
        self.per_request = 1 + drafts
        self._ahead = 1 + drafts * (1 + async_scheduling)
        self._async = async_scheduling
        self._known: dict[RankRequest, int] = {}
        """Tokens of each before the next step."""

    next_end = 0  # it may be any

    def begin(self, work: RankRequest, step: int) -> None:
        """A prompt is complete in a step, and tokens are missing after it."""
        self._known[work] = work.num_tokens + 1
        self._add(work)

    def preempt(self, work: RankRequest, step: int) -> None:
        """Takes one out before a step; its tokens are counted in the request again."""
        self._end(work, self._known.pop(work) - work.request.prompt_len)

    def output_tokens(self, work: RankRequest, step: int) -> int:
        """Tokens of the answer that one has after the last scheduled step."""
        known = self._known.get(work)
        return known - work.request.prompt_len if known else work.num_output_tokens

    def advance(self, step: int) -> list[RankRequest]:
        """Ends a step; returns who got the last token in it."""
        done, gains = [], 0
        for work, known in list(self._known.items()):
            left = work.most_computed + 1 - known
            gain = min(left, 1 + next(work.request.drafts)) if left else 0
            gains += gain
            if gain == left > 0:
                done.append(work)
            if gain < left or (left and self._async):
                self._known[work] = known + gain
            else:
                del self._known[work]
                self._begun -= work.num_tokens
        self.wasted = self.tokens - gains
        self.count = len(self._known)
        self.context = sum(self._known.values()) - self.count
        return done
