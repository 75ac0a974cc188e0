# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Dispatch by prompt tokens and prefixes in vLLM's own front-end."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from vllm.config import VllmConfig
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    BlockHash,
    generate_block_hash_extra_keys,
    hash_block_tokens,
)
from vllm.v1.core.sched.balance.dispatch import TokenDispatch
from vllm.v1.core.sched.balance.prefix_memory import Keys, chunk_tokens
from vllm.v1.engine import EngineCoreOutputs, EngineCoreRequest

if TYPE_CHECKING:
    from vllm.v1.engine.core_client import DPLBAsyncMPClient


OPTION = "data_parallel_dispatch"
"""The key in `--additional-config` that chooses one of `DISPATCHES`."""

DISPATCHES = ("vllm", "tokens", "prefixes")
"""vLLM's own, by counts of requests; by prompt tokens; and by prefixes as well.

Without a choice it is the last one with balance on. With balance off, and where all
prompts arrive with their KV cache (`kv_consumer`), it is the first."""


def create_balance_dispatch(
    client: "DPLBAsyncMPClient", vllm_config: VllmConfig
) -> "BalanceDispatch | None":
    """The dispatch of a front-end; None for vLLM's own.

    Raises:
        ValueError: `--additional-config` has an unknown one.
    """
    is_on = vllm_config.parallel_config.data_parallel_balance != "off"
    role = getattr(vllm_config.kv_transfer_config, "kv_role", None)
    options = vllm_config.additional_config
    usual = DISPATCHES[-1 if is_on and role != "kv_consumer" else 0]
    chosen = options.get(OPTION, usual) if isinstance(options, dict) else usual
    if chosen not in DISPATCHES:
        raise ValueError(
            f"--additional-config {OPTION}: expected one of {', '.join(DISPATCHES)}, "
            f"found {chosen!r}"
        )
    if chosen == "vllm":
        return None
    ranks = len(client.core_engines)
    cache = vllm_config.cache_config
    hasher, chunks = None, 0
    if cache.enable_prefix_caching and chosen == "prefixes":
        hasher = PromptHasher(cache.block_size)
        # The ready messages have said how many blocks the ranks have, all together.
        blocks = (cache.num_gpu_blocks or 0) // ranks
        chunks = blocks * cache.block_size // hasher.chunk_tokens
    return BalanceDispatch(
        TokenDispatch(
            ranks,
            vllm_config.scheduler_config.max_num_seqs,
            client.client_count,
            client.client_index,
            chunks,
            hasher.chunk_tokens if hasher else 1,
        ),
        hasher,
        is_on,
        Peers(client) if hasher and client.client_count > 1 else None,
    )


KEY_BYTES = 16
"""Of a hash."""


class Peers:
    """Other API servers of these ranks, on this host: they hear what ranks computed.

    By datagrams, of which some may be lost: nobody waits for anybody.
    """

    def __init__(self, client: "DPLBAsyncMPClient") -> None:
        """Takes what one of them knows of itself."""
        # In Linux's abstract namespace, which has no files that could be left behind.
        shared = sha256(client.stats_update_address)[:KEY_BYTES].hex()
        names = [f"\0vllm-balance-{shared}-{i}" for i in range(client.client_count)]
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        self.socket.bind(names.pop(client.client_index))
        self._others = names

    def tell(self, rank: int, keys: Keys) -> None:
        """A rank has computed a prompt with these keys."""
        message = rank.to_bytes(KEY_BYTES, "big") + b"".join(keys)  # type: ignore[arg-type]
        for other in self._others:
            # It is not there yet, is gone, or does not come to read.
            with contextlib.suppress(OSError):
                self.socket.sendto(message, other)

    def heard(self) -> Iterator[tuple[int, Keys]]:
        """What others have told."""
        with contextlib.suppress(BlockingIOError):
            while message := self.socket.recv(1 << 18):
                ends = range(KEY_BYTES, len(message), KEY_BYTES)
                keys = [message[start : start + KEY_BYTES] for start in ends]
                yield int.from_bytes(message[:KEY_BYTES], "big"), keys


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

    A rank says of every request that it got when it has ended, however: so nothing
    stays counted of a request that was not sent, or is aborted.
    """

    def __init__(
        self,
        dispatch: TokenDispatch,
        hasher: PromptHasher | None = None,
        tokens_published: bool = True,
        peers: Peers | None = None,
    ) -> None:
        """Starts without requests.

        Args:
            dispatch: the rule.
            hasher: none to look at no prefixes.
            tokens_published: whether ranks publish prompt tokens and requests; else
                those that wait and that run, as upstream's do.
            peers: other API servers.
        """
        self.dispatch = dispatch
        self._hasher = hasher
        self._tokens_published = tokens_published
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
            request: gets its `data_parallel_rank`. Pooling requests do not: those that
                belong together go to one rank.
            published: what the coordinator says of each rank; another list each time.
            ranks: that take requests. The coordinator hears of a change later.
        """
        if not self._listens and self._peers is not None:
            # Not before: only now there is an event loop.
            asyncio.get_running_loop().add_reader(self._peers.socket, self._hear)
            self._listens = True
        if published is not self._published:
            self._published = published
            told = [(int(each[0]), int(each[1])) for each in published[:ranks]]
            if not self._tokens_published:
                told = [(0, waiting + running) for waiting, running in told]
            self.dispatch.publish(told)
        if request.pooling_params is None and request.data_parallel_rank is None:
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
        """Of its prompt; none of more input of a request, which is no beginning."""
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
            and message.pooling_params is None
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
        """Takes first tokens and ends from what an engine answers."""
        for output in outputs.outputs:
            if output.new_token_ids:
                stats = output.prefill_stats
                computed = self.dispatch.first_token(
                    output.request_id, stats and stats.num_local_cached_tokens
                )
                if computed is not None and self._peers is not None:
                    self._peers.tell(*computed)
        for request in outputs.finished_requests or ():
            self.dispatch.ended(request)


def _prompt_tokens(request: EngineCoreRequest) -> int:
    if request.prompt_token_ids is not None:
        return len(request.prompt_token_ids)
    return 0 if request.prompt_embeds is None else len(request.prompt_embeds)
