# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The servers of a trial: one that is switched, one for each stretch, or deployments.

A server that is switched keeps its load, its prefix caches and the step times that it
has learned. Options that are set at the start, as the dispatch, are then the same for
all policies.
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
from .server import Server, refuse_port_in_use

ENDING_S = 1.0
"""Seconds that a process may outlive its connections."""


class ServerPlan(NamedTuple):
    """A server that the trial starts."""

    command: Sequence[str]
    url: str
    model: str


class OwnServer(contextlib.ExitStack):
    """A server that the trial starts: one that is switched, or one for each stretch."""

    def __init__(
        self,
        plan: ServerPlan,
        endpoint: Endpoint,
        folder: Path,
        timeout: float,
        restarts: bool,
    ) -> None:
        """Starts nothing yet.

        Args:
            plan: what to start.
            endpoint: its address.
            folder: gets its logs.
            timeout: seconds that it may take to get ready.
            restarts: whether each stretch gets a new server.

        Raises:
            UsageError: the port is in use.
        """
        super().__init__()
        refuse_port_in_use(plan.url)
        self.is_switched = not restarts
        self._plan, self._endpoint = plan, endpoint
        self._folder, self._timeout = folder, timeout
        self._number = 0

    @contextmanager
    def serve(self, policy: str) -> Iterator[Endpoint]:
        """Starts a server; one that is to be switched with any policy but off."""
        self._number += 1
        log = self._folder / f"server-{self._number}.log"
        if self.is_switched:
            policy = "adaptive"
            os.environ[KEY] = secrets.token_hex()
        refuse_port_in_use(self._plan.url)
        command = [*self._plan.command, *server_options(policy)]
        # By default after 5 s without a request, maybe while one is on its way.
        variables = {"VLLM_HTTP_TIMEOUT_KEEP_ALIVE": "60", **os.environ}
        with Server(command, log, variables) as server:
            server.start()
            server.wait_until_ready(self._endpoint, self._timeout)
            self._endpoint.watch = server.refuse_ended
            try:
                yield self._endpoint
            except Exception:
                time.sleep(ENDING_S)
                server.refuse_ended()  # its message says more than the failed request
                raise


class Deployments(contextlib.ExitStack):
    """Servers that run already: one for each policy, or one that is switched."""

    def __init__(self, endpoints: Mapping[str, Endpoint]) -> None:
        """Takes the endpoint of each policy; the same one if it is to be switched."""
        super().__init__()
        self._endpoints = endpoints
        first, *others = {*endpoints.values()}
        self.is_switched = not others
        if self.is_switched:
            before = first.policy()
            self.callback(first.switch, before)
        for policy, endpoint in endpoints.items():
            if not self.is_switched:
                endpoint.ask()
                endpoint.figures(policy)

    @contextmanager
    def serve(self, policy: str) -> Iterator[Endpoint]:
        yield self._endpoints[policy]
