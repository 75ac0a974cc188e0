# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How long a rank's requests have been pending.

Pure Python; the clock is given.
"""


class PendingAges:
    """Remembers when each pending request was first seen pending.

    A request is pending once it could be admitted, not when it arrives: a time that
    counted from arrival would release everything at once wherever requests queue for
    a slot. A request that is no longer pending (it runs, or its place or its KV cache
    blocks are gone) is forgotten.
    """

    def __init__(self) -> None:
        self._since: dict[str, float] = {}
        self._pending: frozenset[str] | None = None

    def oldest(self, request_ids: frozenset[str], now: float) -> float:
        """Seconds since the first of these became pending; 0 without any.

        Args:
            request_ids: all that are pending now.
            now: seconds of any clock that does not go back.
        """
        since = self._since
        if request_ids is not self._pending:
            for request_id in [each for each in since if each not in request_ids]:
                del since[request_id]
            since.update(dict.fromkeys(request_ids.difference(since), now))
            self._pending = request_ids
        return now - next(iter(since.values()), now)  # they are in order of time
