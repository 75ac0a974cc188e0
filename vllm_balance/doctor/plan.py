"""The configuration that a `vllm serve` command line gives to the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """The engine's configuration; without a command line, its defaults."""

    policy: str = "off"
    ranks: int = 0
    """0 without a command line."""
    local_ranks: int = 1
    first_rank: int = 0
    npus_per_rank: int = 1
    headless: bool = False
    port: int = 8000
    rpc_port: int = 0
    address: str = ""
    model: str = ""
    host: str = ""
    is_https: bool = False
    uds: str = ""
    unasked: str = ""
    """An option that keeps clients here from server or metrics, or empty."""

    @property
    def spans_hosts(self) -> bool:
        return self.local_ranks < self.ranks
