"""Finds free ports of this machine."""

import contextlib
import random
import socket


def free_port() -> int:
    """A free port of the loopback interface.

    It is below the ephemeral ports, any of which a connection may take meanwhile.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.socket() as probe:
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("expected a free port from 20000 to 31999, found none")
