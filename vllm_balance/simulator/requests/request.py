# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A request, from its client's side."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class SimRequest:
    """One request and what became of it. Times are in seconds."""

    index: int
    prompt_len: int
    output_len: int
    due: float = math.nan
    """When it is to be sent, if a trace says so."""
    hash_ids: Iterable[int] = ()
    """Of the first chunks of the prompt: equal beginnings are shared."""
    chunk_size: int = 16
    """Tokens in a chunk."""
    has_cached: bool = False
    """Whether all ranks have these chunks in the KV cache from the start."""
    session: int = 0
    """Number of the session that it belongs to."""
    think: float | None = None
    """Seconds from the last token of the request before it in the list, which is of the
    same session, until it is sent; None if it does not wait for that."""
    cached: int | None = None
    """Tokens of the prompt that its rank had when it was started."""
    drafts: Iterator[int] = field(default_factory=lambda: iter(()))
    """How many drafts are accepted in each step, with speculation."""
    rank: int = -1
    server: int = 0
    """Number of the API server that handles it."""
    sent: float = math.nan
    first_token: float = math.nan
    done: float = math.nan
