# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How decodes fare: how many end in a step, and how much prefills slow them down."""

_MEMORY = 256
"""Ended requests that the share is a mean of; both sums are halved beyond it."""
_SURPRISE = 32.0
"""Requests that should have ended since one has, for answers to have become longer."""
_LONGEST = 1e4
"""Steps over which the stretch is a mean, while no request has ended yet."""


class Decodes:
    """Learned from the counts and times of the steps alone."""

    def __init__(self) -> None:
        self._ended = 0.0
        self._decoded = 0.0
        self._left = 0.0
        self._watched = 0.0
        self._quiet = False
        self._requests = 0
        self.before: int | None = None
        """Requests that decode after the last step; None if there was none."""
        self._expected = 0.0
        self._seconds = 0.0
        self._steps = 0.0

    def reset(self) -> None:
        """Forgets the last step; keeps what was learned."""
        self.before = None

    @property
    def ending(self) -> float:
        """Share of the requests that decode in a step that end in it; 0 at first."""
        return self._ended / self._decoded if self._decoded else 0.0

    @property
    def leaving(self) -> float:
        """As many fewer requests there are after a step, as a share of the decodes."""
        return max(0.0, self._left / self._watched) if self._watched else 0.0

    def stretch_of(self, decode: float | None) -> float:
        """Seconds that pass while a request decodes for one; 1 or more.

        A mean over about the time for which a request decodes.
        """
        if not decode:
            return 1.0
        return max(1.0, self._seconds / (self._steps * decode)) if self._steps else 1.0

    def observe(self, decoding: int, prefilled: int, seconds: float, requests: int) -> None:
        """Adds one step.

        Args:
            decoding: requests that decode on all ranks after it.
            prefilled: prompt tokens that all ranks scheduled in it.
            seconds: its duration; 0 if it is not known.
        """
        if self.before and not prefilled:
            share = self.ending
            # Without prefill nobody joins, so whoever is missing has ended.
            ended = max(0, self.before - decoding)
            self._ended += ended
            self._decoded += self.before
            if self._quiet:
                self._left += self._requests - requests
                self._watched += self.before
            self._expected = 0.0 if ended else self._expected + self.before * share
            # Answers have become longer if none ends where many should.
            if self._ended > _MEMORY or self._expected > _SURPRISE:
                self._ended /= 2
                self._decoded /= 2
                self._left /= 2
                self._watched /= 2
        self.before = decoding
        self._requests = requests
        self._quiet = not prefilled
        if seconds:
            keep = 1 / (1 + max(self.ending, 1 / _LONGEST))
            self._seconds = self._seconds * keep + seconds
            self._steps = self._steps * keep + 1
