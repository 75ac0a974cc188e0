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
        self.before: int | None = None
        """Requests that decode after the last step; None if there was none."""
        self._expected = 0.0
        self._left = 0.0
        """By how many requests the ranks have fewer, after steps without a prefill."""
        self._requests: int | None = None
        """After the last step, if it was one without a prefill."""
        self._seconds = 0.0
        self._decode_seconds = 0.0
        self._steps = 0.0
        """Before it was known what a decode takes."""

    def reset(self) -> None:
        """Forgets the last step; keeps what was learned."""
        self.before = self._requests = None

    @property
    def ending(self) -> float:
        """Share of the requests that decode in a step that end in it; 0 at first."""
        return self._ended / self._decoded if self._decoded else 0.0

    @property
    def replaced(self) -> bool:
        """Whether for most that end another comes at once, as in a closed loop."""
        return self._left + self._left < self._ended

    @property
    def stretch(self) -> float:
        """Seconds that pass for one of a request's decodes; 1 or more.

        A mean over about the time for which a request decodes.
        """
        if not self._decode_seconds:
            return 1.0
        return max(1.0, self._seconds / self._decode_seconds)

    def observe(
        self,
        requests: int,
        decoding: int,
        prefilled: int,
        seconds: float,
        decode: float | None,
    ) -> None:
        """Adds one step.

        Args:
            requests: in all ranks after it.
            decoding: those of them that decode.
            prefilled: prompt tokens that all ranks scheduled in it.
            seconds: its duration; 0 if it is not known.
            decode: seconds of a step without prefill; None if they are not known.
        """
        if self.before and not prefilled:
            share = self.ending
            # Without prefill nobody joins, so whoever is missing has ended.
            ended = max(0, self.before - decoding)
            self._ended += ended
            self._decoded += self.before
            # What came while others prefilled is seen in the step after it.
            before = self._requests
            self._left += ended if before is None else before - requests
            self._expected = 0.0 if ended else self._expected + self.before * share
            # Answers have become longer if none ends where many should.
            if self._ended > _MEMORY or self._expected > _SURPRISE:
                self._ended /= 2
                self._decoded /= 2
                self._left /= 2
        self.before = decoding
        self._requests = None if prefilled else requests
        if not seconds:
            return
        keep = 1 / (1 + max(self.ending, 1 / _LONGEST))
        self._seconds = self._seconds * keep + seconds
        if decode is None:
            self._steps = self._steps * keep + 1
            return
        if self._steps:
            self._decode_seconds, self._steps = self._steps * decode, 0.0
        self._decode_seconds = self._decode_seconds * keep + min(seconds, decode)
