"""Several hosts that serve one model together, as an operator starts them."""

from __future__ import annotations

from pathlib import Path

from balance_tools.serve_process import ServeProcess
from balance_tools.server import Server
from netns import INTERFACE, Host

MODES = ("internal", "hybrid", "external")
RANKS = 2
"""On each host."""

TIMEOUT_S = 10
"""How long a step may take before the ranks that do not answer are looked for."""

HTTP_PORT, RPC_PORT = 8000, 13345


class Group:
    """The processes of all hosts, which start and end together.

    `servers` have an API; with internal load balancing only the first host has one, and
    the others run `--headless`.
    """

    def __init__(
        self, mode: str, hosts: list[Host], model: Path, folder: Path, *options: str
    ) -> None:
        self.mode, self.hosts = mode, hosts
        self.ranks = RANKS * len(hosts)
        self.servers: list[Server] = []
        self.processes: dict[Host, list[ServeProcess]] = {host: [] for host in hosts}
        common = (
            *("--data-parallel-size", str(self.ranks)),
            *("--data-parallel-address", hosts[0].address),
            *("--data-parallel-rpc-port", str(RPC_PORT)),
            *options,
        )
        for number, host in enumerate(hosts):
            for place, own in enumerate(_options(mode, number)):
                name = f"{host.name}-{place}"
                arguments = (*common, *own)
                process: ServeProcess
                if "--headless" in own:
                    process = ServeProcess(
                        *(folder, name, model, *arguments),
                        environment=_environment(host),
                        enter=host.enter,
                    )
                else:
                    process = Server(
                        *(folder, model, *arguments),
                        environment=_environment(host),
                        address=host.address,
                        port=HTTP_PORT + place,
                        enter=host.enter,
                        name=name,
                    )
                    self.servers.append(process)
                self.processes[host].append(process)

    def __enter__(self) -> Group:
        try:
            self.start()
        except BaseException:
            self._print_log_tails()
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: object, error: BaseException | None, trace: object
    ) -> None:
        if error is not None:
            self._print_log_tails()
        left = self._stop()
        assert error is not None or not left, f"processes left behind: {left}"

    def start(self) -> None:
        """Start all hosts at once and wait until every server answers."""
        for process in self._all():
            process.start()
        for server in self.servers:
            server.wait_until_ready()

    def log(self, host: Host) -> str:
        """What the processes of a host have written."""
        return "\n".join(process.log.read_text() for process in self.processes[host])

    def wait(self, timeout: float) -> None:
        """Wait until every process has ended by itself."""
        for process in self._all():
            process.wait(timeout)

    def _all(self) -> list[ServeProcess]:
        return [process for found in self.processes.values() for process in found]

    def _stop(self) -> list[str]:
        return [name for process in self._all() for name in process.stop()]

    def _print_log_tails(self) -> None:
        for process in self._all():
            process.print_log_tail()


def _environment(host: Host) -> dict[str, str]:
    return {
        "VLLM_HOST_IP": host.address,
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(TIMEOUT_S),
    }


def _options(mode: str, number: int) -> list[tuple[str, ...]]:
    """The options of each `vllm serve` of the host with this number."""
    first = number * RANKS
    if mode == "external":
        ranks = range(first, first + RANKS)
        return [("--data-parallel-rank", str(rank)) for rank in ranks]
    ours = (
        *("--data-parallel-size-local", str(RANKS)),
        *("--data-parallel-start-rank", str(first)),
    )
    if mode == "hybrid":
        return [("--data-parallel-hybrid-lb", *ours)]
    return [("--headless", *ours) if number else ours[:2]]
