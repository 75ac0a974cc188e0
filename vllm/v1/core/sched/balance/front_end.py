# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Dispatch by prompt tokens in vLLM's own front-end."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from vllm.config import VllmConfig
from vllm.v1.core.sched.balance.dispatch import TokenDispatch
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest

if TYPE_CHECKING:
    from vllm.v1.engine.core_client import DPLBAsyncMPClient


def create_balance_dispatch(
    client: "DPLBAsyncMPClient", vllm_config: VllmConfig
) -> "BalanceDispatch | None":
    """The dispatch of a front-end; None unless balance scheduling is on."""
    if vllm_config.parallel_config.data_parallel_balance == "off":
        return None
    return BalanceDispatch(
        TokenDispatch(
            len(client.core_engines),
            vllm_config.scheduler_config.max_num_seqs,
            client.client_count,
            client.client_index,
        )
    )


class BalanceDispatch:
    """Pins requests to ranks; counts those that were sent until they end.

    A rank says of every request that it got when it has ended, however: so nothing
    stays counted of a request that was not sent, or is aborted.
    """

    def __init__(self, dispatch: TokenDispatch) -> None:
        """Starts without requests."""
        self.dispatch = dispatch
        self._published: Sequence[Sequence[float]] | None = None

    def pin(
        self,
        request: EngineCoreRequest,
        published: Sequence[Sequence[float]],
        ranks: int,
    ) -> None:
        """Chooses the rank of a request, unless somebody has.

        Args:
            request: gets its `data_parallel_rank`. Pooling requests do not: those that
                belong together go to one rank.
            published: what the coordinator says of each rank, prompt tokens and
                requests first; another list each time.
            ranks: that take requests. The coordinator hears of a change later.
        """
        if published is not self._published:
            self._published = published
            self.dispatch.publish(
                [(int(each[0]), int(each[1])) for each in published[:ranks]]
            )
        if request.pooling_params is None and request.data_parallel_rank is None:
            rank = self.dispatch.rank_of(request.request_id)
            request.data_parallel_rank = (
                self.dispatch.choose() if rank is None else rank
            )

    def sent(self, message: EngineCoreRequest | list[str]) -> None:
        """A request, or names of aborted ones, was serialised and goes to its rank."""
        if (
            isinstance(message, EngineCoreRequest)
            and message.pooling_params is None
            and message.data_parallel_rank is not None
        ):
            self.dispatch.sent(
                message.request_id,
                message.data_parallel_rank,
                _prompt_tokens(message),
            )

    def see(self, outputs: EngineCoreOutputs) -> None:
        """Takes first tokens and ends from what an engine answers."""
        for output in outputs.outputs:
            if output.new_token_ids:
                self.dispatch.first_token(output.request_id)
        for request in outputs.finished_requests or ():
            self.dispatch.ended(request)


def _prompt_tokens(request: EngineCoreRequest) -> int:
    if request.prompt_token_ids is not None:
        return len(request.prompt_token_ids)
    return 0 if request.prompt_embeds is None else len(request.prompt_embeds)
