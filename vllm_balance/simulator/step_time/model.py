# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The time of the ranks' common step, from what each rank computes.

The options and `CostModel` say seconds per token. `adaptive` and the pages
say the same in seconds per full step of N tokens (`max_num_batched_tokens`):

=========================================== ============================
here                                        `core/policies/cost`
=========================================== ============================
t0 + a·decodes + context·tokens (+ experts) decode
c                                           fixed
(1 − phi)·b                                 own / N
phi·b                                       shared / N
padded·phi·b                                padding / N
=========================================== ============================
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from ...errors import UsageError

MOST = 1e6
"""The largest value of a constant."""
LEAST_STEP = 1e-9
"""The shortest step in seconds."""


class Loads(NamedTuple):
    """What every rank computes in one step; one value per rank."""

    prefill: Sequence[int]
    """Prompt tokens."""
    decodes: Sequence[int]
    """Tokens of the requests that decode: one of each, and its drafts."""
    context: Sequence[int]
    """Tokens that the decodes attend to: the computed tokens of each request, summed;
    its drafts read them with it."""
    attended: Sequence[float] = ()
    """Tokens that the prompt tokens attend to, summed: a chunk of n at position p
    counts n·(p + n/2). May be empty if it is not needed."""
    before: Sequence[int] = ()
    """Positions at which the chunks of prompts begin, summed. May be empty, too."""


@dataclass(frozen=True)
class CostModel:
    """A step takes a constant plus the slowest rank's work: see `step_seconds`."""

    t0: float
    """Seconds of a step that computes nothing."""
    a: float
    """Seconds per token of the requests that decode."""
    b: float
    """Seconds per prompt token."""
    c: float
    """Seconds more when any rank prefills (no full graph, another kernel)."""
    context: float = 0.0
    """Seconds per token that the decodes attend to."""
    attention: float = 0.0
    """Seconds per token that a prompt token attends to: at b / attention tokens of
    context a prompt token costs twice as much as at the beginning."""
    projection: float = 0.0
    """Seconds per token before a chunk of a prompt, however short the chunk: with MLA
    each chunk projects the latents of all that is before it anew."""
    experts: float = 0.0
    """Seconds to read the weights of all experts. A step of few tokens reads few of
    them, which makes the time of decodes concave."""
    experts_tokens: float = 32.0
    """Tokens of all ranks together after which 1 - 1/e of the experts are read."""
    phi: float = 0.0
    """Share of the prefill cost that all ranks bear together, 0 to 1 (experts of a
    prefill are spread over the expert parallel ranks)."""
    padded: float = 0.0
    """1 if the all-to-all is padded: a rank that only decodes computes as many rows
    that nobody needs as the longest prefill has. 0 if not."""
    drafter: float = 0.0
    """Seconds of a pass of the drafter; each step has one for each draft."""
    noise: float = 0.0
    """Steps vary uniformly by plus or minus half this share."""
    launch: float = 0.0
    """Share of a step that is computed when its launch returns, with asynchronous
    scheduling: 0 if it returns at once, 1 if the rank's process itself computes."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not is_number or not 0 <= value <= MOST:
                raise UsageError(
                    f"cost model: {field.name} is {value!r:.40}; it must be a number "
                    f"from 0 to {MOST:g}."
                )
        if self.phi > 1:
            raise UsageError(f"cost model: phi is {self.phi}; it is a share, 0 to 1.")
        if self.padded not in (0, 1):
            raise UsageError(f"cost model: padded is {self.padded}; give 0 or 1.")
        if self.t0 < LEAST_STEP:
            raise UsageError(
                f"cost model: t0 is {self.t0}; an empty step takes {LEAST_STEP:g} s or "
                "more."
            )
        if self.noise > 1:
            raise UsageError(f"cost model: noise is {self.noise}; give 0 to 1.")
        if self.launch > 1:
            raise UsageError(f"cost model: launch is {self.launch}; give 0 to 1.")
        if self.experts_tokens < 1:
            raise UsageError(
                f"cost model: experts_tokens is {self.experts_tokens}; give 1 or more."
            )

    def with_drafts(self, drafts: int) -> "CostModel":
        """The cost model of steps with a number of drafts."""
        return replace(self, t0=self.t0 + drafts * self.drafter)

    def step_seconds(self, loads: Loads) -> float:
        """Seconds of the common step, without noise.

        ``t0 + max(a·decodes + context·tokens + (1−phi)·b·prefill + attention·attended
        + projection·before) + phi·b·mean(rows) + c·[any prefill]
        + experts·(1 − exp(−tokens of all ranks / experts_tokens))``, the maximum and
        the mean over the ranks. The rows of a rank are its prompt tokens; with padding
        those of a rank without any are the most that another rank has.
        """
        common, own, shared = self.parts(loads)
        seconds = common + max(own)
        return seconds + shared + self.c if any(loads.prefill) else seconds

    def parts(self, loads: Loads) -> tuple[float, Sequence[float], float]:
        """Seconds that are the same for all ranks, those of each rank, and shared ones.

        `c` is not among them.
        """
        prefill, decodes = loads.prefill, loads.decodes
        common = self.t0
        if self.experts:
            tokens = sum(decodes) + sum(prefill)
            common -= self.experts * math.expm1(-tokens / self.experts_tokens)
        a, context, own = self.a, self.context, self.b * (1 - self.phi)
        if not any(prefill):
            rank_pairs = zip(decodes, loads.context, strict=True)
            return common, [a * n + context * tokens for n, tokens in rank_pairs], 0.0
        seconds = [
            a * requests + context * attended_to + own * tokens
            for requests, attended_to, tokens in zip(
                decodes, loads.context, prefill, strict=True
            )
        ]
        if self.attention and loads.attended:
            seconds = [
                own_seconds + self.attention * pairs
                for own_seconds, pairs in zip(seconds, loads.attended, strict=True)
            ]
        if self.projection and loads.before:
            seconds = [
                own_seconds + self.projection * tokens
                for own_seconds, tokens in zip(seconds, loads.before, strict=True)
            ]
        rows = sum(prefill)
        if self.padded:
            rows += max(prefill) * prefill.count(0)
        return common, seconds, self.b * self.phi * rows / len(prefill)

    def noisy(self, seconds: float, rng: random.Random) -> float:
        """The duration of one step that takes `seconds` on average."""
        return seconds * (1 + self.noise * (rng.random() - 0.5))


DEEPSEEK_V3_1 = CostModel(
    t0=0.039, a=2e-4, b=2.26e-4, c=0.034, context=6e-8, phi=0.0, noise=0.0
)
"""Constants fitted (not measured) to the throughput and TPOT that vllm-ascend #5212
reports for DeepSeek-V3.1 with 3500 input and 1500 output tokens."""
