# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Where the server of a turn comes from: it is switched, started anew, or runs already.

One that is switched keeps its model and what it has learned of the device, so that a
turn begins at once. What can only be set at the start, as the dispatch, is the same for
all policies then.
"""

import contextlib
import os
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from ..policy import KEY
from ..server_api import Endpoint
from ..simulator.policies import server_options
from .load import HASH_SEED, LOADS_SEED
from .server import Server, refuse_port_in_use
from .steps import logging_config
from .turns import Folder, Turn

DETAILS = "--enable-logging-iteration-details"
ENDING_S = 1.0
"""So long a process may still be there whose connections are closed."""


class Ours(NamedTuple):
    """A server that the trial starts."""

    command: Sequence[str]
    url: str
    model: str


class Started(contextlib.ExitStack):
    """A server that the trial starts, for one turn or for all."""

    def __init__(
        self,
        ours: Ours,
        endpoint: Endpoint,
        folder: Folder,
        timeout: float,
        restarts: bool,
    ) -> None:
        """Starts nothing yet.

        Args:
            ours: what to start.
            endpoint: its address.
            folder: gets its logs.
            timeout: seconds that it may take to get ready.
            restarts: whether each turn has one of its own.

        Raises:
            UsageError: somebody listens where it is to listen.
        """
        super().__init__()
        refuse_port_in_use(ours.url)
        self.turn = self._anew if restarts else self._switched
        self._ours, self._endpoint = ours, endpoint
        self._folder, self._timeout = folder, timeout
        self._server: Server | None = None
        self._steps = folder.path / "turns" / "all.steps"

    @contextmanager
    def _anew(self, turn: Turn) -> Iterator[Endpoint]:
        """Serves one turn."""
        steps = self._folder.file(turn, ".steps")
        log = self._folder.file(turn, ".server.log")
        with self._start(steps, log, turn.policy) as server, self._watched(server):
            yield self._endpoint

    @contextmanager
    def _switched(self, turn: Turn) -> Iterator[Endpoint]:
        """Goes on with another policy."""
        endpoint = self._endpoint
        if self._server is None:
            # With any policy but off, or there is nothing to be switched.
            os.environ[KEY] = secrets.token_hex()
            log = self._steps.with_suffix(".server.log")
            server = self._start(self._steps, log, "adaptive")
            self._server = self.enter_context(server)
        with self._watched(self._server):
            endpoint.switch(turn.policy)
            begin = self._steps.stat().st_size
            yield endpoint
        with self._steps.open("rb") as steps:
            steps.seek(begin)
            self._folder.file(turn, ".steps").write_bytes(steps.read())

    @contextmanager
    def _start(self, steps: Path, log: Path, policy: str) -> Iterator[Server]:
        refuse_port_in_use(self._ours.url)
        steps.unlink(missing_ok=True)
        config = steps.with_suffix(".logging").resolve()
        self._folder.write(config, logging_config(steps.resolve()))
        command = [*self._ours.command, DETAILS, *server_options(policy)]
        # What it logs `logging_config` says; vLLM would refuse that beside a 0 here.
        variables = {
            # By default after 5 s without a request, maybe while one is on its way.
            "VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60",
            **os.environ,
            "VLLM_CONFIGURE_LOGGING": "1",
            "VLLM_LOGGING_CONFIG_PATH": str(config),
        }
        if variables.get(HASH_SEED) == LOADS_SEED:
            del variables[HASH_SEED]  # it is public; clients of a server could use that
        with Server(command, log, variables) as server:
            server.start()
            server.wait_until_ready(self._endpoint, self._timeout)
            yield server

    @contextmanager
    def _watched(self, server: Server) -> Iterator[None]:
        self._endpoint.watch = server.refuse_ended
        try:
            yield
        except Exception:
            time.sleep(ENDING_S)
            server.refuse_ended()  # which says more than what came of it
            raise


class Running(contextlib.ExitStack):
    """Servers that run already: one for each policy, or one that is switched."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Takes the endpoint of each policy; the same one if it is to be switched."""
        super().__init__()
        self._endpoints = endpoints
        first, *others = endpoints.values()
        self._is_switched = first in others
        if self._is_switched:
            before = first.policy()
            self.callback(first.switch, before)
        for policy, endpoint in endpoints.items():
            if not self._is_switched:
                endpoint.ask()
                endpoint.figures(policy)

    @contextmanager
    def turn(self, turn: Turn) -> Iterator[Endpoint]:
        """Serves one turn."""
        endpoint = self._endpoints[turn.policy]
        if self._is_switched:
            endpoint.switch(turn.policy)
        yield endpoint
