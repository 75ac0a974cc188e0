"""What a `vllm serve` command line would make of the engine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Plan:
    """What the engine would be configured as; without a command line, its defaults."""

    policy: str = "off"
    ranks: int = 0
    """0 where nothing says how many."""
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
    """The option, if any, that keeps clients here from asking it or its metrics."""

    @property
    def spans_hosts(self) -> bool:
        return self.local_ranks < self.ranks
