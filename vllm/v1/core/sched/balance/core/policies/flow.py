# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How requests flow: how many end in a step, and how much prefills slow them down."""

from .cost import MEMORY


class Flow:
    """Learned from the counts and times of the steps alone."""

    def __init__(self) -> None:
        self._ended = 0.0
        self._decoded = 0.0
        self._left = 0.0
        """By how many requests the ranks have fewer, after steps without a prefill."""
        self._seconds = 0.0
        self._decode_seconds = 0.0
        self._steps = 0.0
        """Before it was known what a decode takes."""
        self.reset()

    def reset(self) -> None:
        """Forgets the last step; keeps what was learned."""
        self.decoding = 0
        """Requests that decode after the last step."""
        self._requests: int | None = None
        """After the last step, if it was one without a prefill."""

    @property
    def ending(self) -> float:
        """Share of the requests that decode in a step that end in it; 0 at first."""
        return self._ended / self._decoded if self._decoded else 0.0

    @property
    def is_closed(self) -> bool:
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
        ended: int,
        prefilled: int,
        seconds: float,
        decode: float | None,
    ) -> None:
        """Adds one step.

        Args:
            requests: in all ranks after it.
            decoding: those of them that decode.
            ended: those that decoded before it and are finished.
            prefilled: prompt tokens that all ranks scheduled in it.
            seconds: its duration; 0 if it is not known.
            decode: seconds of a step without prefill; None if they are not known.
        """
        if self.decoding and not prefilled:
            # Each that should end forgets one, so that longer answers are learned, too.
            keep = 1 / (1 + self.decoding * self.ending / MEMORY)
            self._ended = self._ended * keep + ended
            self._decoded = self._decoded * keep + self.decoding
            # What came while others prefilled is seen in the step after it.
            before = self._requests
            left = ended if before is None else before - requests
            self._left = self._left * keep + left
        self.decoding = decoding
        self._requests = None if prefilled else requests
        if not seconds:
            return
        keep = 1 / (1 + self.ending)
        self._seconds = self._seconds * keep + seconds
        if decode is None:
            self._steps = self._steps * keep + 1
            return
        if self._steps:
            self._decode_seconds, self._steps = self._steps * decode, 0.0
        self._decode_seconds = self._decode_seconds * keep + min(seconds, decode)
