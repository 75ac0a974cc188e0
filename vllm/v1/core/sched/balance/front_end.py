# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Dispatch in vLLM's own front-end, and what ranks publish for it."""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vllm.config import VllmConfig
from vllm.config.parallel import DataParallelDispatch
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    generate_block_hash_extra_keys,
    hash_block_tokens,
)
from vllm.v1.core.sched.balance.context_dispatch import ContextDispatch
from vllm.v1.core.sched.balance.dispatch import TokenDispatch
from vllm.v1.core.sched.balance.peers import KEY_BYTES, PEERS, Peers
from vllm.v1.core.sched.balance.prefix_memory import Keys, chunk_tokens
from vllm.v1.core.sched.balance.reads import load_of
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.pool.late_interaction import get_late_interaction_engine_index

if TYPE_CHECKING:
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.engine.core_client import DPLBAsyncMPClient


def dispatch_of(vllm_config: VllmConfig) -> DataParallelDispatch:
    """The dispatch of a server with this configuration: as chosen, or the usual one.

    With balance off, that is vLLM's own. Where all prompts arrive with their KV cache
    (`kv_consumer`), it is by context.
    """
    parallel_config = vllm_config.parallel_config
    if parallel_config.data_parallel_dispatch is not None:
        return parallel_config.data_parallel_dispatch
    if parallel_config.data_parallel_balance == "off":
        return "vllm"
    role = getattr(vllm_config.kv_transfer_config, "kv_role", None)
    return "context" if role == "kv_consumer" else "prefixes"


def published_counts(
    vllm_config: VllmConfig, scheduler: "Scheduler", counts: tuple[int, int]
) -> tuple[int, int]:
    """What a rank tells the front-ends: that which their dispatch reads.

    Args:
        vllm_config: the rank's.
        scheduler: the rank's.
        counts: running and waiting requests, as vLLM's own dispatch reads them.

    Returns:
        Instead of these, for other dispatches, requests in flight and tokens: by
        context those that they attend to, else those of prompts to compute.
    """
    dispatch = dispatch_of(vllm_config)
    if dispatch == "vllm":
        return counts
    load = load_of(scheduler)
    return sum(counts), load["context" if dispatch == "context" else "unprefilled"]


def create_balance_dispatch(
    client: "DPLBAsyncMPClient", addresses: Mapping[str, Any] | None = None
) -> "BalanceDispatch | None":
    """The dispatch of a front-end; None for vLLM's own.

    Args:
        client: the front-end.
        addresses: what the process that started it has handed it.
    """
    vllm_config = client.vllm_config
    name = dispatch_of(vllm_config)
    if name == "vllm":
        return None
    ranks = len(client.core_engines)
    slots = vllm_config.scheduler_config.max_num_seqs
    servers, server = client.client_count, client.client_index
    if name == "context":
        return BalanceDispatch(ContextDispatch(ranks, slots, servers, server))
    cache = vllm_config.cache_config
    if not cache.enable_prefix_caching or name == "tokens":
        return BalanceDispatch(TokenDispatch(ranks, slots, servers, server))
    hasher = PromptHasher(cache.block_size)
    # The ready messages have said how many blocks the ranks have, all together.
    blocks = (cache.num_gpu_blocks or 0) // ranks
    chunks = blocks * cache.block_size // hasher.chunk_tokens
    return BalanceDispatch(
        TokenDispatch(ranks, slots, servers, server, chunks, hasher.chunk_tokens),
        hasher,
        (addresses or {}).get(PEERS) if servers > 1 else None,
    )


class PromptHasher:
    """Hashes prompts as vLLM hashes blocks, in larger chunks.

    Always by its usual algorithm: others take up to twenty times as long.
    """

    def __init__(self, block_size: int) -> None:
        """Takes the tokens of a block of the KV cache."""
        self.chunk_tokens = chunk_tokens(block_size)

    def keys(self, request: EngineCoreRequest) -> Keys:
        """The keys of a prompt; none of one that reads no cache, or has embeddings."""
        tokens = request.prompt_token_ids
        if (
            tokens is None
            or len(tokens) < self.chunk_tokens
            or request.prompt_embeds is not None
            or getattr(request.params, "skip_reading_prefix_cache", None)
        ):
            return ()
        keys: list[BlockHash] = []
        key, image = BlockHash(b"prompt"), 0
        for end in range(self.chunk_tokens, len(tokens) + 1, self.chunk_tokens):
            start = end - self.chunk_tokens
            # It looks at nothing that the front-end's request lacks.
            extra, image = generate_block_hash_extra_keys(request, start, end, image)
            key = hash_block_tokens(sha256, key, tokens[start:end], extra)
            keys.append(BlockHash(key[:KEY_BYTES]))
        return keys


class BalanceDispatch:
    """Pins requests to ranks; counts those that were sent until they end.

    A rank says of every request that it got that it has ended, also if it was aborted.
    So nothing stays counted, and nothing is counted that was not sent.
    """

    def __init__(
        self,
        dispatch: TokenDispatch | ContextDispatch,
        hasher: PromptHasher | None = None,
        peers: Peers | None = None,
    ) -> None:
        """Starts without requests.

        Args:
            dispatch: the rule.
            hasher: none to look at no prefixes.
            peers: other API servers.
        """
        self.dispatch = dispatch
        self._generated = getattr(dispatch, "generated", None)
        self._hasher = hasher
        self._peers = peers
        self._listens = peers is None
        self._hashed: tuple[EngineCoreRequest | None, Keys] = None, ()
        """The request that was pinned and is not sent yet."""
        self._published: Sequence[Sequence[float]] | None = None

    def pin(
        self,
        request: EngineCoreRequest,
        published: Sequence[Sequence[float]],
        ranks: int,
    ) -> None:
        """Chooses the rank of a request, unless somebody has.

        Args:
            request: gets its `data_parallel_rank`. Pooling requests that belong
                together go to one rank.
            published: what the coordinator says of each rank: `published_counts` in
                reverse; another list each time.
            ranks: that take requests. The coordinator hears of a change later.
        """
        if not self._listens and self._peers is not None:
            # Not before: only now there is an event loop.
            asyncio.get_running_loop().add_reader(self._peers.socket, self._hear)
            self._listens = True
        if published is not self._published:
            self._published = published
            told = [(int(each[0]), int(each[1])) for each in published[:ranks]]
            self.dispatch.publish(told)
        rank = request.data_parallel_rank
        if rank is None:
            rank = get_late_interaction_engine_index(request.pooling_params, ranks)
        if rank is None:
            rank = self.dispatch.rank_of(request.request_id)
        if rank is None:
            keys = self._hasher.keys(request) if self._hasher else ()
            rank = self.dispatch.choose(keys)
            self._hashed = request, keys
        request.data_parallel_rank = rank

    def _hear(self) -> None:
        for rank, keys in self._peers.heard() if self._peers else ():
            self.dispatch.heard(rank, keys)

    def _keys(self, request: EngineCoreRequest) -> Keys:
        """The keys of its prompt; none of further input, which is no beginning."""
        if (
            self._hasher is None
            or self.dispatch.rank_of(request.request_id) is not None
        ):
            return ()
        return self._hasher.keys(request)

    def sent(self, message: EngineCoreRequest | list[str]) -> None:
        """A request, or names of aborted ones, was serialised and goes to its rank."""
        if (
            isinstance(message, EngineCoreRequest)
            and message.data_parallel_rank is not None
        ):
            pinned, keys = self._hashed
            self._hashed = None, ()
            self.dispatch.sent(
                message.request_id,
                message.data_parallel_rank,
                _prompt_tokens(message),
                keys if pinned is message else self._keys(message),
            )

    def see(self, outputs: EngineCoreOutputs) -> None:
        """Takes first tokens, all others and ends from what an engine answers."""
        for output in outputs.outputs:
            tokens = len(output.new_token_ids)
            if tokens or output.pooling_output is not None:
                stats = output.prefill_stats
                computed = self.dispatch.first_token(
                    output.request_id, stats and stats.num_local_cached_tokens
                )
                if computed is not None and self._peers is not None:
                    self._peers.tell(*computed)
                if self._generated is not None:
                    self._generated(output.request_id, tokens)
        for request in outputs.finished_requests or ():
            self.dispatch.ended(request)


def _prompt_tokens(request: EngineCoreRequest) -> int:
    if request.prompt_token_ids is not None:
        return len(request.prompt_token_ids)
    return 0 if request.prompt_embeds is None else len(request.prompt_embeds)
