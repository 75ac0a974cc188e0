# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The requests of a rank that decode: counted, until the step in which one ends."""

from .limits import BLOCK_SIZE, blocks_of
from .request import RankRequest


class Decodes:
    """Requests that compute a token in each step."""

    per_request = 1
    """Tokens that one computes in a step."""

    def __init__(self) -> None:
        self.count = 0
        """Requests that compute in the next step."""
        self.context = 0
        """Tokens that these attend to."""
        self.wasted = 0
        """Tokens of the last step that bring none of an answer."""
        self._growing = [0] * BLOCK_SIZE
        """Requests by phase."""
        self._ending: dict[int, list[RankRequest]] = {}
        """Requests by the step of their last token."""

    @property
    def tokens(self) -> int:
        """Tokens that all compute in the next step."""
        return self.count * self.per_request

    def begin(self, work: RankRequest, step: int) -> None:
        """A prompt is complete in a step, and tokens are missing after it."""
        work.ends = step + work.request.output_len - work.num_output_tokens - 1
        work.phase = (work.num_tokens - step - 1) % BLOCK_SIZE
        self._growing[work.phase] += 1
        self._add(work)

    def _add(self, work: RankRequest) -> None:
        self.count += 1
        self.context += work.num_tokens
        self._ending.setdefault(work.ends, []).append(work)

    def growth(self, step: int) -> int:
        """Blocks of the KV cache that all need for a step."""
        return self._growing[-step % BLOCK_SIZE]

    def grows(self, work: RankRequest, step: int) -> int:
        """Those of one, which may have ended."""
        return not work.ended and not (work.phase + step) % BLOCK_SIZE

    def preempt(self, work: RankRequest, step: int) -> None:
        """Takes one out before a step; its tokens are counted in the request again."""
        if work.ended:
            work.num_computed_tokens = work.most_computed
            return
        work.num_output_tokens = work.request.output_len - (work.ends - step + 1)
        work.num_computed_tokens = work.num_tokens - 1
        self._ending[work.ends].remove(work)
        self._remove(work, work.num_computed_tokens)

    def _remove(self, work: RankRequest, computed: int) -> None:
        self.count -= 1
        self.context -= computed
        self._growing[work.phase] -= 1

    def advance(self, step: int) -> list[RankRequest]:
        """Ends a step; returns who got the last token in it."""
        self.context += self.count
        done = self._ending.pop(step, [])
        for work in done:
            self._remove(work, work.most_computed)
        return done


class _Drafts:
    """What is drafted for a request."""

    def __init__(self) -> None:
        self.accepted: list[int] = []
        """Drafts of each step, of which one more token comes than are accepted."""
        self.used = 0
        """Steps before it was begun."""
        self.first = 0
        """The first step after that."""
        self.known: list[int] = []
        """Its tokens before each of the steps and after the last, while it decodes."""


class DraftedDecodes(Decodes):
    """Requests that also compute drafts in each step, of which some are accepted.

    Drafts need look-ahead slots in the KV cache. With asynchronous scheduling a request
    has room for all drafts of the step that has not ended, and one that may need
    another step is scheduled for it before that is known.
    """

    def __init__(self, drafts: int, async_scheduling: bool) -> None:
        """So many drafts in each step."""
        super().__init__()
        self.per_request = 1 + drafts
        self._ahead = drafts
        self._async = async_scheduling
        self._drafts: dict[RankRequest, _Drafts] = {}
        self._gains: dict[int, int] = {}
        """Output tokens by step."""
        self._in_vain: list[RankRequest] = []
        """Requests that have ended and are in the next step all the same."""

    def begin(self, work: RankRequest, step: int) -> None:
        """A prompt is complete in a step, and tokens are missing after it."""
        drafts = self._drafts.setdefault(work, _Drafts())
        known = work.num_tokens + 1
        most = work.request.prompt_len + work.request.output_len
        drafts.first, drafts.known = step + 1, [known]
        number, work.ends = drafts.used, step
        while known < most:
            if number == len(drafts.accepted):
                drafts.accepted.append(next(work.request.drafts))
            gain = min(1 + drafts.accepted[number], most - known)
            known, number, work.ends = known + gain, number + 1, work.ends + 1
            drafts.known.append(known)
            self._gains[work.ends] = self._gains.get(work.ends, 0) + gain
        self._add(work)

    def growth(self, step: int) -> int:
        """Blocks of the KV cache that all need for a step."""
        return sum([self.grows(work, step) for work in self._drafts])

    def grows(self, work: RankRequest, step: int) -> int:
        """Those of one, which may have ended."""
        drafts = self._drafts.get(work)
        if not drafts or not drafts.known:
            return 0
        before = step - drafts.first
        if self._async and before:
            slots = drafts.known[before - 1] - 1 + 2 * self.per_request
        else:
            slots = drafts.known[before] - 1 + self.per_request
        return max(0, blocks_of(slots + self._ahead) - work.num_blocks)

    def preempt(self, work: RankRequest, step: int) -> None:
        """Takes one out before a step; its tokens are counted in the request again."""
        if work.ended:
            super().preempt(work, step)
            if work in self._in_vain:
                self._in_vain.remove(work)
                self._remove(work, work.most_computed)
            return
        drafts = self._drafts[work]
        before, known = step - drafts.first, drafts.known
        for index in range(before, len(known) - 1):
            self._gains[drafts.first + index] -= known[index + 1] - known[index]
        drafts.used, drafts.known = drafts.used + before, []
        work.num_output_tokens = known[before] - work.request.prompt_len
        # What is in the KV cache and known.
        work.num_computed_tokens = known[before - 1] if before else known[0] - 1
        self._ending[work.ends].remove(work)
        self._remove(work, known[before] - 1)

    def _remove(self, work: RankRequest, computed: int) -> None:
        self.count -= 1
        self.context -= computed
        if work.ended:
            del self._drafts[work]

    def advance(self, step: int) -> list[RankRequest]:
        """Ends a step; returns who got the last token in it."""
        gain = self._gains.pop(step, 0)
        self.context += gain
        self.wasted = self.tokens - gain
        ended, self._in_vain = self._in_vain, []
        done = self._ending.pop(step, [])
        for work in done:
            work.ended = True
            known = self._drafts[work].known
            if self._async and known[-1] - known[-2] > 1:
                self._in_vain.append(work)
            else:
                ended.append(work)
        for work in ended:
            self._remove(work, work.most_computed)
        return done
