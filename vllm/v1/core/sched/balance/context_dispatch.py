# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Which rank of a decode instance gets a request: by the context its requests have.

Pure Python: no torch, no vllm import.
"""

from collections.abc import Hashable

from .dispatch import TokenDispatch
from .prefix_memory import Keys


class ContextDispatch(TokenDispatch):
    """Sends each request to the rank whose requests attend to least.

    The ranks of a decode instance step together, so a step lasts as long as the rank
    with the most context. A rank with a free slot comes before one without; then the
    least prompt tokens and answer tokens so far of the requests in flight, plus
    `request_tokens` for each of them. Prompts are taken to arrive computed, so their
    prefixes do not count. What ranks publish, for several front-ends, are these tokens
    and the requests in flight, in the fields of `Backlog`.
    """

    request_tokens = 1500
    """What a request costs beside its context, and what its answer is still to add: of
    1,000 to 4,000, all within 1 % of each other."""

    def choose(self, keys: Keys = ()) -> int:
        """The rank for the next request; the keys of its prompt do not matter."""
        return super().choose()

    def sent(
        self, request: Hashable, rank: int, prompt_tokens: int, keys: Keys = ()
    ) -> None:
        """A request goes to a rank, or more input of it, which adds to its context."""
        before = self._requests.get(request)
        if before is not None:
            prompt_tokens += before.tokens
        super().sent(request, rank, prompt_tokens)

    def first_token(
        self, request: Hashable, cached_tokens: int | None = None
    ) -> tuple[int, Keys] | None:
        """The prompt goes on to count; there is nothing to tell others."""
        return None

    def generated(self, request: Hashable, tokens: int) -> None:
        """More tokens of the answer, the first ones included, have passed."""
        sent = self._requests.get(request)
        if sent is not None:
            sent.tokens += tokens
            self._tokens[sent.rank] += tokens
