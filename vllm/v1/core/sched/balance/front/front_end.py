# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Dispatch in vLLM's own front-end."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vllm.config import VllmConfig
from vllm.config.parallel import DataParallelDispatch
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    generate_block_hash_extra_keys,
    hash_block_tokens,
)
from vllm.v1.core.sched.balance.front.board import KEY_BYTES, board_of
from vllm.v1.core.sched.balance.options import only_decodes
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest
from vllm.v1.pool.late_interaction import get_late_interaction_engine_index

from vllm_balance.core.dispatch import (
    TO_ATTEND,
    TO_COMPUTE,
    Dispatch,
    Keys,
    chunk_tokens,
)

if TYPE_CHECKING:
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
    return "context" if only_decodes(vllm_config) else "prefixes"


def create_balance_dispatch(client: "DPLBAsyncMPClient") -> "BalanceDispatch | None":
    """The dispatch of a front-end; None for vLLM's own."""
    vllm_config = client.vllm_config
    name = dispatch_of(vllm_config)
    if name == "vllm":
        return None
    board = board_of(client.client_index)
    ranks = len(client.core_engines)
    slots = vllm_config.scheduler_config.max_num_seqs
    cache = vllm_config.cache_config
    if name != "prefixes" or not cache.enable_prefix_caching:
        weights = TO_ATTEND if name == "context" else TO_COMPUTE
        return BalanceDispatch(Dispatch(ranks, slots, weights, board))
    hasher = PromptHasher(cache.block_size)
    # The ready messages have said how many blocks the ranks have, all together.
    blocks = (cache.num_gpu_blocks or 0) // ranks
    chunks = blocks * cache.block_size // hasher.chunk_tokens
    return BalanceDispatch(
        Dispatch(ranks, slots, TO_COMPUTE, board, chunks, hasher.chunk_tokens), hasher
    )


PROMPTS_KNOWN = 8
"""Prompts whose hashes are kept: front-ends alternate between fewer."""


class PromptHasher:
    """Hashes prompts as vLLM hashes blocks, in larger chunks.

    Always by its usual algorithm: others take up to twenty times as long. The requests
    for several answers to one prompt share its list of tokens, which is hashed once.
    """

    def __init__(self, block_size: int) -> None:
        self.chunk_tokens = chunk_tokens(block_size)
        # With the tokens, so that no other list takes the number of one that is gone;
        # without the request, whose images take much more memory.
        self._known: dict[int, tuple[list[int], Any, Keys]] = {}

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
        beside = _beside_tokens(request)
        _, before, keys = self._known.get(id(tokens), (tokens, None, ()))
        if before != beside or len(keys) != len(tokens) // self.chunk_tokens:
            keys = self._hashes(request, tokens)
            self._known[id(tokens)] = tokens, beside, keys
            if len(self._known) > PROMPTS_KNOWN:
                del self._known[next(iter(self._known))]
        return keys

    def _hashes(self, request: EngineCoreRequest, tokens: list[int]) -> Keys:
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

    def __init__(self, dispatch: Dispatch, hasher: PromptHasher | None = None) -> None:
        self.dispatch = dispatch
        self.keys = hasher.keys if hasher is not None else lambda request: ()

    def pin(
        self, request: EngineCoreRequest, published: Sequence[Any], ranks: int
    ) -> None:
        """Chooses the rank of a request, unless somebody has.

        Pooling requests that belong together go to one rank. Of a change of `ranks`,
        which take requests, the coordinator, who has `published`, hears later.
        """
        ranks = min(len(published), ranks)
        if ranks != self.dispatch.ranks:
            self.dispatch.resize(ranks)
        rank = request.data_parallel_rank
        if rank is None:
            rank = get_late_interaction_engine_index(request.pooling_params, ranks)
        if rank is None:
            rank = self.dispatch.rank_of(request.request_id)
        if rank is None:
            rank = self.dispatch.choose(self.keys(request))
        request.data_parallel_rank = rank

    def sent(self, message: EngineCoreRequest | list[str]) -> None:
        """Counts a request that goes to its rank, and no names of aborted ones."""
        if (
            isinstance(message, EngineCoreRequest)
            and message.data_parallel_rank is not None
        ):
            self.dispatch.sent(
                message.request_id,
                message.data_parallel_rank,
                _prompt_tokens(message),
                self.keys(message),
            )

    def see(self, outputs: EngineCoreOutputs) -> None:
        """Notes the tokens and the ends of requests in what an engine answers."""
        for output in outputs.outputs:
            tokens = len(output.new_token_ids)
            if tokens or output.pooling_output is not None:
                self.dispatch.answered(output.request_id, tokens)
        for request in outputs.finished_requests or ():
            self.dispatch.ended(request)


def _beside_tokens(request: EngineCoreRequest) -> Any:
    """All that a prompt's hashes depend on, beside its tokens."""
    media = [
        (f.identifier, f.mm_position.offset, f.mm_position.length)
        for f in request.mm_features or ()
    ]
    adapter = request.lora_request and request.lora_request.lora_name
    return media, adapter, request.cache_salt


def _prompt_tokens(request: EngineCoreRequest) -> int:
    if request.prompt_token_ids is not None:
        return len(request.prompt_token_ids)
    return 0 if request.prompt_embeds is None else len(request.prompt_embeds)
