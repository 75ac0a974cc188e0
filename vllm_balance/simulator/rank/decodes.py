# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The decoding requests of a rank, kept as counts until one of them ends."""

import math

from .limits import blocks_of
from .request import RankRequest


class Decodes:
    """Requests that compute a token in each step."""

    per_request = 1
    """Tokens that a request computes in a step."""
    _ahead = 1
    """Tokens of a request that need room in the KV cache beside its own."""

    def __init__(self) -> None:
        self.count = 0
        """Requests that compute in the next step."""
        self.context = 0
        """Tokens that these requests attend to."""
        self.wasted = 0
        """Tokens of the last step that are in no answer."""
        self._begun = 0
        """Tokens that these requests had when they began to decode."""
        self._ending: dict[int, list[RankRequest]] = {}
        """Requests by the step of their last token."""

    @property
    def next_end(self) -> float:
        """The next step in which a request ends."""
        return min(self._ending, default=math.inf)

    @property
    def tokens(self) -> int:
        """Tokens that all requests compute in the next step."""
        return self.count * self.per_request

    @property
    def blocks(self) -> int:
        """Blocks that all need for the next step, beside those with which they began.

        The sum of their tokens is rounded, and not each: a request's last block is half
        full on average, at the beginning as now.
        """
        return blocks_of(self.context - self._begun + self.count * self._ahead)

    def begin(self, work: RankRequest, step: int) -> None:
        """Begins a request whose prompt is complete in a step."""
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
        """Takes a request out before a step, and writes its tokens back into it."""
        passed = self.output_tokens(work, step - 1)
        self._ending[work.ends].remove(work)
        work.ends = 0
        self._end(work, passed)

    def _end(self, work: RankRequest, passed: int) -> None:
        computed = work.request.prompt_len + passed - 1
        self._remove(work, computed)
        work.num_output_tokens, work.num_computed_tokens = passed, computed

    def output_tokens(self, work: RankRequest, step: int) -> int:
        """Tokens of a request's answer after the last scheduled step, `step`.

        With asynchronous scheduling a front-end has them a step later.
        """
        if not work.ends:
            return work.num_output_tokens
        return work.request.output_len - (work.ends - step)

    def advance(self, step: int) -> list[RankRequest]:
        """Ends a step; returns the requests that got their last token."""
        self.context += self.count
        done = self._ending.pop(step, [])
        for work in done:
            self._remove(work, work.most_computed)
        return done


class DraftedDecodes(Decodes):
    """Requests that also compute drafts in each step, of which some are accepted.

    Drafts need look-ahead slots in the KV cache, and with asynchronous scheduling as
    many again for the step that has not ended. A request's end is then known only
    after another step.
    """

    def __init__(self, drafts: int, async_scheduling: bool) -> None:
        """Takes the number of drafts in each step."""
        super().__init__()
        self.per_request = 1 + drafts
        self._ahead = 1 + drafts * (1 + async_scheduling)
        self._async = async_scheduling
        self._tokens: dict[RankRequest, int] = {}
        """By request its tokens before the next step."""

    next_end = 0  # any step may be one

    def begin(self, work: RankRequest, step: int) -> None:
        """Begins a request whose prompt is complete in a step."""
        self._tokens[work] = work.num_tokens + 1
        self._add(work)

    def preempt(self, work: RankRequest, step: int) -> None:
        """Takes a request out before a step, and writes its tokens back into it."""
        self._end(work, self._tokens.pop(work) - work.request.prompt_len)

    def output_tokens(self, work: RankRequest, step: int) -> int:
        """Tokens of a request's answer after the last scheduled step."""
        tokens = self._tokens.get(work)
        return tokens - work.request.prompt_len if tokens else work.num_output_tokens

    def advance(self, step: int) -> list[RankRequest]:
        """Ends a step; returns the requests that got their last token."""
        done, gains = [], 0
        for work, tokens in list(self._tokens.items()):
            missing = work.most_computed + 1 - tokens
            gain = min(missing, 1 + next(work.request.drafts)) if missing else 0
            gains += gain
            if gain == missing > 0:
                done.append(work)
            if gain < missing or (missing and self._async):
                self._tokens[work] = tokens + gain
            else:
                del self._tokens[work]
                self._begun -= work.num_tokens
        self.wasted = self.tokens - gains
        self.count = len(self._tokens)
        self.context = sum(self._tokens.values()) - self.count
        return done
