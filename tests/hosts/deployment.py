"""Several hosts that serve one model together, as an operator starts them."""

import contextlib
import os
import threading
import time

import requests

from netns import INTERFACE, Host
from test_policy_route import SECRET
from vllm_server import ServeProcess, Server, direct

OPTIONS = (
    "--enable-expert-parallel",
    *("--data-parallel-balance", "cap", "--max-num-seqs", "2"),
)
"""Two places a rank are full soon, so that the gate holds."""

MODES = ("internal", "hybrid", "external")
RANKS = 2
"""On each host."""

TIMEOUT_S = 10
"""How long a step may take before the ranks that do not answer are looked for."""

RESTART_S = 2
"""How long a process that has ended stays so, when the hosts are supervised."""

HTTP_PORT, RPC_PORT = 8000, 13345


class Group:
    """The processes of all hosts, which start and end together.

    `servers` have an API; with internal load balancing only the first host has one, and
    the others run `--headless`.
    """

    def __init__(self, mode, hosts, model, folder):
        self.mode, self.hosts = mode, hosts
        self.ranks = RANKS * len(hosts)
        self.servers: list[Server] = []
        self.processes: dict[Host, list[ServeProcess]] = {host: [] for host in hosts}
        common = (
            *("--data-parallel-size", str(self.ranks)),
            *("--data-parallel-address", hosts[0].address),
            *("--data-parallel-rpc-port", str(RPC_PORT)),
            *OPTIONS,
        )
        for number, host in enumerate(hosts):
            for place, own in enumerate(_options(mode, number)):
                name = f"{host.name}-{place}"
                arguments = (*common, *own)
                process: ServeProcess
                if "--headless" in own:
                    process = ServeProcess(
                        *(folder, name, model, *arguments),
                        environment=environment(host),
                        enter=host.enter,
                    )
                else:
                    process = Server(
                        *(folder, model, *arguments),
                        environment=environment(host),
                        address=host.address,
                        port=HTTP_PORT + place,
                        enter=host.enter,
                        name=name,
                    )
                    self.servers.append(process)
                self.processes[host].append(process)

    def __enter__(self):
        try:
            self.start()
        except BaseException:
            self._print_log_tails()
            self._stop()
            raise
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            self._print_log_tails()
        left = self._stop()
        assert error is not None or not left, f"processes left behind: {left}"

    def start(self):
        for process in self._all():
            process.start()
        for server in self.servers:
            server.wait_until_ready()

    def log(self, host):
        return "\n".join(process.log.read_text() for process in self.processes[host])

    def wait(self, timeout):
        for process in self._all():
            process.wait(timeout)

    def kill(self, host):
        for process in self.processes[host]:
            process.kill()

    @contextlib.contextmanager
    def supervised(self):
        ended = threading.Event()

        def supervise(process):
            while not ended.wait(0.2):
                if process.exit_status() is not None and not ended.wait(RESTART_S):
                    process.kill()  # what the first process has left behind
                    process.start()

        threads = [threading.Thread(target=supervise, args=[p]) for p in self._all()]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def wait_until_healthy(self, timeout):
        """Wait until all servers answer at once; they may end and start meanwhile."""
        deadline = time.monotonic() + timeout
        while not all(map(_healthy, self.servers)):
            assert time.monotonic() < deadline, f"not healthy after {timeout:g} s"
            time.sleep(0.5)

    def _all(self):
        return [process for found in self.processes.values() for process in found]

    def _stop(self):
        return [name for process in self._all() for name in process.stop()]

    def _print_log_tails(self):
        for process in self._all():
            process.print_log_tail()


def environment(host):
    return os.environ | {
        "VLLM_HOST_IP": host.address,
        "GLOO_SOCKET_IFNAME": INTERFACE,
        "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": str(TIMEOUT_S),
        **SECRET,
    }


def _healthy(server):
    try:
        return direct("GET", f"{server.url}/health", timeout=5).ok
    except requests.RequestException:
        return False


def _options(mode, number):
    first = number * RANKS
    if mode == "external":
        ranks = range(first, first + RANKS)
        return [("--data-parallel-rank", str(rank)) for rank in ranks]
    ours = (
        *("--data-parallel-size-local", str(RANKS)),
        *("--data-parallel-start-rank", str(first)),
    )
    if mode == "hybrid":  # and synchronous: rows are sent before a step is computed
        return [("--data-parallel-hybrid-lb", "--no-async-scheduling", *ours)]
    return [("--headless", *ours) if number else ours[:2]]
