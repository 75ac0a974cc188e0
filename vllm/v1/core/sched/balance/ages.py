# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How long a rank's requests have been pending. Pure Python; the clock is given."""

from collections.abc import Iterable


class PendingAges:
    """Remembers when each pending request was first seen pending.

    A request is pending once it could be admitted, not when it arrives: a time that
    counted from arrival would release everything at once wherever requests queue for
    a slot. A request that is no longer pending (it runs, or its place or its KV cache
    blocks are gone) is forgotten.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def oldest(self, request_ids: Iterable[str], now: float) -> float:
        """Seconds since the first of these became pending; 0 without any.

        Args:
            request_ids: all that are pending now.
            now: seconds of any clock that does not go back.
        """
        known = self._since
        self._since = {
            request_id: known.get(request_id, now) for request_id in request_ids
        }
        return now - min(self._since.values(), default=now)
