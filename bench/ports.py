"""Ports for what listens on this machine."""

import contextlib
import random
import socket


def free_port() -> int:
    """A port of the loopback interface that nobody listens on.

    Below the ephemeral ones, of which a connection may take any before it is used.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("expected a free port from 20000 to 31999, found none")
