# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A request as its client sees it."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class SimRequest:
    """One request, with its times in seconds."""

    index: int
    prompt_len: int
    output_len: int
    due: float = math.nan
    """When it is to be sent, by a trace; else nan."""
    hash_ids: Iterable[int] = ()
    """Ids of the first chunks of the prompt: equal leading ids share their chunks."""
    chunk_size: int = 16
    """Tokens in a chunk."""
    has_cached: bool = False
    """Whether all ranks have these chunks in the KV cache from the start."""
    session: int = 0
    """Number of the session that it belongs to."""
    think: float | None = None
    """Seconds between the last token of the request before it in the same session and
    its sending; None if it does not wait."""
    cached: int | None = None
    """Tokens of the prompt that its rank had cached when the prompt was started."""
    drafts: Iterator[int] = field(default_factory=lambda: iter(()))
    """How many drafts are accepted in each step, with speculation."""
    rank: int = -1
    server: int = 0
    """Number of the API server that handles it."""
    sent: float = math.nan
    first_token: float = math.nan
    done: float = math.nan
