# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Sessions of agents: a request is sent a think time after the answer before it.

Reads the traces of kv-cache-tester (AgentX), one session of JSON per line. Its requests
are objects with `in`, `out`, `think_time` and `hash_ids`, or lists of time, input and
output tokens, API time, think time, and the hash ids as runs: how many of the request
before, then pairs of first id and count. Requests of sub-agents are left out.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any

from ...errors import UsageError
from ..arguments import MOST_TOKENS

MOST_THINK_SECONDS = 60.0
"""The longest pause; longer ones are cut, as in kv-cache-tester's replay."""


@dataclass(frozen=True)
class Runs(Iterable[int]):
    """Hash ids of a prompt, as ranges, because long prompts have thousands."""

    ranges: tuple[range, ...]
    is_global: bool = False
    """Whether equal ids are equal text in all sessions of the file."""
    shared: int = 0
    """How many first ids are replaced by ids that all sessions share."""
    mark: int | None = None
    """If given, replaces the next id, so that ids behind different marks mean different
    texts."""

    def __len__(self) -> int:
        return sum(map(len, self.ranges))

    def __iter__(self) -> Iterator[int]:
        ids = chain.from_iterable(self.ranges)
        if self.mark is None:
            return ids
        shared = min(self.shared, len(self))
        rest = islice(ids, shared + 1, None)
        mark = [self.mark][: len(self) - shared]
        return chain(range(-1, -1 - shared, -1), mark, rest)


Turn = tuple[Any, Any, float | None, Runs]
"""A request: prompt tokens, output tokens (at least 1), seconds after the answer before
(None for the first), and hash ids."""


def session_turns(where: str, item: Mapping[str, Any]) -> tuple[int, list[Turn]]:
    """The tokens per hash id, and the requests of a session, in order.

    Raises:
        UsageError: it is no session; the message begins with file and line, `where`.
    """
    turns: list[Turn] = []
    ids, number = Runs(()), 0
    is_global = item.get("hash_id_scope") == "global"
    try:
        for request in item["requests"]:
            number += 1
            if isinstance(request, dict):
                if request.get("type") == "subagent":
                    continue
                think = request.get("think_time", 0.0)
                prompt, output = request["in"], request["out"]
                ids = Runs(tuple(_ranges(request["hash_ids"])), is_global)
            else:
                _, prompt, output, _, think, shared, runs = request
                beginning = _first(ids.ranges, shared)
                new = (range(a, a + count) for a, count in runs)
                ids = Runs((*beginning, *new), is_global)
            if not math.isfinite(think):
                raise ValueError(f"think time {think}")
            pause = min(max(0.0, float(think)), MOST_THINK_SECONDS)
            if len(ids) > MOST_TOKENS:
                raise ValueError(f"{len(ids)} hash ids")
            turns.append((prompt, max(1, output), pause if turns else None, ids))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"{where}: request {number} of the session cannot be read ({error!r}); "
            "expected in, out, think_time and hash_ids."
        ) from None
    size = item.get("block_size")
    if type(size) is not int or not 1 <= size <= MOST_TOKENS:
        raise UsageError(
            f"{where}: block_size is {size!r:.40}; expected the tokens of a hash id."
        )
    return size, turns


def _ranges(ids: Iterable[int]) -> list[range]:
    """Ids as ranges of consecutive ones."""
    ranges: list[range] = []
    for hash_id in ids:
        if ranges and ranges[-1].stop == hash_id:
            ranges[-1] = range(ranges[-1].start, hash_id + 1)
        else:
            ranges.append(range(hash_id, hash_id + 1))
    return ranges


def _first(ranges: Iterable[range], count: int) -> Iterator[range]:
    """The ranges of the first ids."""
    for ids in ranges:
        if count <= 0:
            return
        yield ids[:count]
        count -= len(ids)
