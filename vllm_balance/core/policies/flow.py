# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How requests flow: how many end in a step, and how much prefills slow them down."""

from typing import NamedTuple

from .cost import FORGETTING_STEPS


class Flow(NamedTuple):
    """Learned from the counts and times of the steps alone.

    It is a value: `observe` returns the next one.
    """

    decoding: int = 0
    """Requests that decode after the last step."""
    ended: float = 0.0
    """Requests that ended in steps without a prefill."""
    decoded: float = 0.0
    """Those that decoded in them."""
    seconds: float = 0.0
    """Of all steps."""
    decode_seconds: float = 0.0
    """What these would have taken without prefills."""
    steps: float = 0.0
    """Steps before it was known what a decode takes."""
    mean: float = 0.0
    """Of the requests in all ranks, over the last `FORGETTING_STEPS` that ended."""
    variance: float = 0.0
    """Of the same."""

    def next_wave(self) -> "Flow":
        return self._replace(decoding=0)

    @property
    def ending(self) -> float:
        """Share of the requests that decode in a step that end in it; 0 at first."""
        return self.ended / self.decoded if self.decoded else 0.0

    @property
    def is_closed(self) -> bool:
        """Whether another request comes for each that ends, and no others.

        Their number hardly varies then. Where they come at random, its variance is
        about its mean.
        """
        return self.variance < self.mean / 4

    @property
    def stretch(self) -> float:
        """Seconds that pass for one of a request's decodes; 1 or more.

        A mean over about the time for which a request decodes.
        """
        if not self.decode_seconds:
            return 1.0
        return max(1.0, self.seconds / self.decode_seconds)

    def observe(
        self,
        requests: int,
        decoding: int,
        ended: int,
        prefilled: int,
        seconds: float,
        decode: float | None,
    ) -> "Flow":
        """With one step more.

        After it there are `requests`, of which some are `decoding`; `ended` are those
        that decoded before it and are finished. `seconds` are 0, and `decode`, those of
        a step without prefill, None if they are not known.
        """
        _, ends, decoded, passed, decodes, steps, mean, variance = self
        if ended:
            share = min(1.0, ended / FORGETTING_STEPS) if mean else 1.0
            away = requests - mean
            mean += share * away
            variance += share * ((1 - share) * away * away - variance)
        if self.decoding and not prefilled:
            # Each that should end forgets one, so that longer answers are learned, too.
            keep = 1 / (1 + self.decoding * self.ending / FORGETTING_STEPS)
            ends = ends * keep + ended
            decoded = decoded * keep + self.decoding
        if seconds:
            keep = 1 / (1 + (ends / decoded if decoded else 0.0))
            passed = passed * keep + seconds
            if decode is None:
                steps = steps * keep + 1
            else:
                if steps:
                    decodes, steps = steps * decode, 0.0
                decodes = decodes * keep + min(seconds, decode)
        return Flow(decoding, ends, decoded, passed, decodes, steps, mean, variance)
