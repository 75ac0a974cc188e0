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

    def output_tokens(self, work: RankRequest, step: int) -> int:
        """Tokens of the answer that one has once a step has ended, not those after."""
        known, tokens = work.num_output_tokens, self._tokens_after(work, step)
        prefills = work.num_computed_tokens < work.num_tokens
        return min(known, tokens) if prefills else max(known, tokens)

    def _tokens_after(self, work: RankRequest, step: int) -> int:
        """As if it decoded since it began, or until it was preempted."""
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

    Drafts need look-ahead slots in the KV cache. With asynchronous scheduling a request
    has room for all drafts of the step that has not ended, and one that may need
    another step is scheduled for it before that is known.
    """

    def __init__(self, drafts: int, async_scheduling: bool) -> None:
        """The number of drafts in each step."""
        super().__init__()
        self.per_request = 1 + drafts
        self._async = async_scheduling
        self._known: dict[RankRequest, tuple[int, int]] = {}
        """Tokens of each before the next step, and before the last one or 0."""

    def begin(self, work: RankRequest, step: int) -> None:
        """A prompt is complete in a step, and tokens are missing after it."""
        self._known[work] = work.num_tokens + 1, 0
        tokens = work.num_output_tokens
        work.ends, work.past = step, (tokens + 1, tokens, tokens)
        self.count += 1
        self.context += work.num_tokens

    def growth(self, step: int) -> int:
        """Blocks of the KV cache that all need for a step."""
        return sum([self.grows(work, step) for work in self._known])

    def grows(self, work: RankRequest, step: int) -> int:
        """Those of one, which may have ended."""
        if work not in self._known:
            return 0
        known, before = self._known[work]
        slots = before + self.per_request if self._async and before else known
        slots += 2 * self.per_request - 2  # its own, and those ahead
        return max(0, blocks_of(slots) - work.num_blocks)

    def preempt(self, work: RankRequest, step: int) -> None:
        """Takes one out before a step; its tokens are counted in the request again."""
        known, before = self._known.pop(work, (0, 0))
        if known:
            self.count -= 1
            self.context -= known - 1
        if not work.ended:
            work.num_output_tokens = known - work.request.prompt_len
            # What is in the KV cache and known.
            work.num_computed_tokens = before or known - 1

    def _tokens_after(self, work: RankRequest, step: int) -> int:
        return work.past[max(0, work.ends - step)]

    def advance(self, step: int) -> list[RankRequest]:
        """Ends a step; returns who got the last token in it."""
        done, gains = [], 0
        for work, (known, _) in list(self._known.items()):
            left = work.most_computed + 1 - known
            gain = min(left, 1 + next(work.request.drafts)) if left else 0
            gains += gain
            self._known[work] = known + gain, known
            last, before, _ = work.past
            work.ends, work.past = step, (last + gain, last, before)
            if gain == left:
                done += [work] * (left > 0)
                # Asynchronously it is known only after another step that this was all.
                if not self._async or left < 2:
                    del self._known[work]
        self.wasted = self.tokens - gains
        self.count = len(self._known)
        self.context = sum([known - 1 for known, _ in self._known.values()])
        return done
