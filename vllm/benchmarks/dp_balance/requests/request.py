# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A request, from its client's side."""

import math


class SimRequest:
    """One request and what became of it. Times are in seconds."""

    __slots__ = (
        "chunk_size",
        "done",
        "due",
        "first_token",
        "hash_ids",
        "index",
        "output_len",
        "prompt_len",
        "rank",
        "sent",
        "server",
    )

    def __init__(self, index: int, prompt_len: int, output_len: int) -> None:
        self.index = index
        self.due = math.nan
        """When it is to be sent, if a trace says so."""
        self.hash_ids: tuple[int, ...] = ()
        """Of the first chunks of the prompt: equal beginnings are shared."""
        self.chunk_size = 16
        """Tokens in a chunk."""
        self.prompt_len = prompt_len
        self.output_len = output_len
        self.rank = -1
        self.server = 0
        """Number of the API server that handles it."""
        self.sent = self.first_token = self.done = math.nan
