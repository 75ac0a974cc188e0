# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Fails the request whose grammar could not be compiled, and no other."""

from concurrent.futures import Future
from typing import Any

import torch
from vllm.logger import init_logger
from vllm.v1.structured_output.backend_types import StructuredOutputGrammar

logger = init_logger(__name__)


def fails_alone(grammar: Any) -> Any:
    """The grammar of a request, or its future: a `FailedGrammar` if there is none.

    Later releases keep the compiler's error themselves; theirs comes to the same.
    """
    if not isinstance(grammar, Future):
        return grammar
    settled: Future[StructuredOutputGrammar] = Future()

    def settle(done: "Future[StructuredOutputGrammar]") -> None:
        error = done.exception()
        settled.set_result(FailedGrammar(error) if error else done.result())

    grammar.add_done_callback(settle)
    return settled


class FailedGrammar(StructuredOutputGrammar):
    """Stands for a grammar that does not exist: it rejects every token.

    The scheduler ends a request whose token is rejected with an error, and the client
    gets status 500. Until then nothing is masked. Upstream raises the compiler's error
    in `schedule` instead, which ends the engine and with it all ranks.
    """

    def __init__(self, error: BaseException) -> None:
        """Logs why there is none."""
        logger.error("A grammar could not be compiled; its request fails: %s", error)

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """No token is right."""
        return False

    def validate_tokens(self, tokens: list[int]) -> list[int]:
        """Nor is any draft."""
        return []

    def is_terminated(self) -> bool:
        """So that upstream masks nothing, and does not ask `fill_bitmask`."""
        return True

    def fill_bitmask(self, bitmask: torch.Tensor, batch_index: int) -> None:
        """There is nothing to mask."""

    def rollback(self, num_tokens: int) -> None:
        """There is no state."""

    def reset(self) -> None:
        """There is no state."""
