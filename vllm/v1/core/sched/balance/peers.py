# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""How the API servers of one host tell each other what the ranks have computed.

By datagrams on socket pairs, which the process that starts the API servers hands them.
A pair has no name, so that no other process can write to it, or take its place. Some
datagrams may be lost: nobody waits for anybody. Imports nothing else of vllm.
"""

import contextlib
import socket
from collections.abc import Iterator, Sequence
from typing import Any

from .prefix_memory import Keys

KEY_BYTES = 16
"""Length of the key of a chunk, and of the rank's number before the keys."""

PEERS = "balance_peers"
"""The key of an API server's `Peers` in what it is started with."""

AT_ONCE = 16
"""Datagrams that are read before the event loop has its turn again."""

_MOST_BYTES = 1 << 18


class Peers:
    """What one API server holds: its own socket, and those into which others look."""

    def __init__(self, own: socket.socket, others: Sequence[socket.socket]) -> None:
        """Takes sockets of `connect_peers`; both can be sent to a new process.

        Args:
            own: to read what others tell.
            others: to tell each of the others.
        """
        self.socket = own
        self._others = others

    def tell(self, rank: int, keys: Keys) -> None:
        """Says that a rank has computed a prompt with these keys of `KEY_BYTES`."""
        message = rank.to_bytes(KEY_BYTES, "big") + b"".join(keys)  # type: ignore[arg-type]
        for other in self._others:
            # It is gone, or does not come to read.
            with contextlib.suppress(OSError):
                other.send(message, socket.MSG_DONTWAIT)

    def heard(self) -> Iterator[tuple[int, Keys]]:
        """Yields the ranks and keys of at most `AT_ONCE` prompts that others told."""
        with contextlib.suppress(OSError):
            for _ in range(AT_ONCE):
                message = self.socket.recv(_MOST_BYTES, socket.MSG_DONTWAIT)
                ends = range(KEY_BYTES, len(message), KEY_BYTES)
                keys = [message[start : start + KEY_BYTES] for start in ends]
                yield int.from_bytes(message[:KEY_BYTES], "big"), keys


def connect_peers(servers: int) -> list[Peers]:
    """Makes the sockets of all API servers of a host: what each of them is handed."""
    pairs = [
        socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(servers)
    ]
    senders = [sender for _, sender in pairs]
    return [
        Peers(own, [sender for sender in senders if sender is not mine])
        for own, mine in pairs
    ]


class _PeersContext:
    """A context of `multiprocessing` whose processes are API servers that are peers."""

    def __init__(self, context: Any, servers: int) -> None:
        self._context = context
        self._peers = iter(connect_peers(servers))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._context, name)

    # The name is that of multiprocessing.
    def Process(self, *, args: tuple[Any, ...], **options: Any) -> Any:  # noqa: N802
        """A process; the last of its arguments, a mapping, gets the peers as well."""
        *others, client_config = args
        handed = {**client_config, PEERS: next(self._peers)}
        return self._context.Process(args=(*others, handed), **options)


def context_with_peers(context: Any, servers: int) -> Any:
    """A context of `multiprocessing` that hands API servers their `Peers`.

    Args:
        context: the context of `multiprocessing` to start processes with.
        servers: how many API servers it starts.
    """
    return _PeersContext(context, servers)
