"""A real `vllm serve`: start, wait, ask, read metrics, stop all of it.

For the tests of engine, hosts, images and wheels.
"""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import psutil
import requests
from prometheus_client.parser import text_string_to_metric_families

from fork_server import Forked, ForkServer
from ports import free_port

START_S = 240
"""How long a server may take to answer; a busy machine needs a multiple of 15 s."""

PORT_TAKEN = ("EADDRINUSE", "Address already in use")
"""What a log says when a port was taken between vLLM's choice of it and its use.

vLLM chooses the ports of its process groups among the system's ephemeral ones, seconds
before the engines listen on them; meanwhile any connection may get one.
"""

STOP_S = 60
"""How long it may take to stop."""

LOG_TAIL_LINES = 60

REQUEST_S = 120
SETTLE_S, SETTLE_PAUSE_S = 120.0, 0.5


def direct(method, url, **how):
    """As `requests.request`, but past any proxy and .netrc: the servers are ours."""
    with requests.Session() as session:
        session.trust_env = False
        return session.request(method, url, **how)


@functools.cache
def fork_server():
    """The one of this process."""
    return ForkServer()


class ServeProcess:
    """`vllm serve MODEL OPTIONS` with all its processes; it may be headless.

    `python` is the interpreter of the environment in which vllm is installed.
    `folder` gets the log, `name`.log, and is the working directory: the server must
    import the installed packages, not a source tree. `enter` goes before the command,
    to start it elsewhere on this machine: `nsenter …`. `forked` is faster, and for what
    does not depend on how it was started: see `fork_server`.
    """

    follow_s: float = 30
    """How long its other processes may live after the first."""

    def __init__(
        self,
        folder,
        name,
        model,
        *options,
        environment=None,
        python=sys.executable,
        enter=(),
        forked=False,
    ):
        self.log = folder / f"{name}.log"
        self._folder = folder
        self._is_forked = forked
        program = (str(python), "-m", "vllm.entrypoints.cli.main")
        self._command = [*enter, *program, "serve", str(model), *options]
        self._environment = {
            **os.environ,
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
            **(environment or {}),
        }
        self._process: subprocess.Popen[bytes] | Forked | None = None

    def start(self):
        if self._is_forked:
            arguments = self._command[self._command.index("serve") :]
            self._process = fork_server().start(
                [*map(str, arguments)], self._environment, self._folder, self.log
            )
            return
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # a process group of its own
            )

    def exit_status(self):
        """What its first process exited with; None while that runs."""
        assert self._process is not None
        return self._process.poll()

    def wait(self, timeout):
        """The exit status, when it has ended by itself with all its processes.

        Raises:
            AssertionError: names those that live after `timeout` seconds.
        """
        assert self._process is not None
        gone, alive = psutil.wait_procs(self.processes(), timeout=timeout)
        names = [process.name() for process in alive if is_alive(process.pid)]
        assert not names, f"{self.log}: still there after {timeout:g} s: {names}"
        # The first that waits for a process has its status.
        statuses = {process.pid: process.returncode for process in gone}
        status = statuses.get(self._process.pid)
        return self._process.wait(STOP_S) if status is None else status

    def kill(self):
        """End every process at once, as a power failure does."""
        processes = self.processes()
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(processes, timeout=STOP_S)

    def stop(self):
        """Ask it to stop; the names of its processes that had to be killed."""
        assert self._process is not None
        processes = self.processes()
        self._process.send_signal(signal.SIGTERM)
        # If it does not stop in time, it counts as left behind, below.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_S)
        psutil.wait_procs(processes, timeout=self.follow_s)
        left = [p for p in {*processes, *self.processes()} if is_alive(p.pid)]
        names = []
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                names.append(f"{process.pid} {process.name()}")
                process.kill()
        psutil.wait_procs(left, timeout=STOP_S)
        self._process.wait(STOP_S)
        return names

    def processes(self):
        """Its processes that are alive: its group, and its descendants."""
        assert self._process is not None
        found: dict[int, psutil.Process] = {}
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(self._process.pid).children(recursive=True):
                found[child.pid] = child
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, ProcessLookupError):
                if os.getpgid(process.pid) == self._process.pid:
                    found[process.pid] = process
        return [p for p in found.values() if is_alive(p.pid)]

    def print_log_tail(self):
        lines = self.log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:]
        print(f"--- end of {self.log}", *lines, sep="\n", file=sys.stderr)


def is_alive(pid):
    """Whether a process has not ended; its parent may not know it yet."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    return False


class Server(ServeProcess):
    """A `vllm serve` with an API server, as a context manager.

    It listens on `address` and `port`, by default a free one of the loopback interface;
    for the rest see `ServeProcess`. If it loses a port at its start (`PORT_TAKEN`), it
    is started once more. On exit all its processes are ended; those that outlive the
    server's own shutdown are killed and reported as a failure. If the body fails, the
    end of the log goes to stderr.
    """

    def __init__(
        self,
        folder,
        model,
        *options,
        environment=None,
        python=sys.executable,
        address="127.0.0.1",
        port=None,
        enter=(),
        name=None,
        forked=False,
    ):
        self.port = port or free_port()
        self.url = f"http://{address}:{self.port}"
        self.model = model
        super().__init__(
            folder,
            name or f"server-{self.port}",
            model,
            "--host",
            address,
            "--port",
            str(self.port),
            *options,
            environment=environment,
            python=python,
            enter=enter,
            forked=forked,
        )

    def __enter__(self):
        self.start()
        try:
            try:
                self.wait_until_ready()
            except RuntimeError as error:
                log = self.log.read_text(errors="replace")
                ended = self.exit_status() is not None
                if not ended or not any(said in log for said in PORT_TAKEN):
                    raise
                self.print_log_tail()
                print(f"{error}: a port was taken; once more", file=sys.stderr)
                self.stop()
                self.start()
                self.wait_until_ready()
        except BaseException:
            self.print_log_tail()
            self.stop()
            raise
        return self

    def __exit__(self, kind, error, trace):
        if error is not None:
            self.print_log_tail()
        left = self.stop()
        if error is None:
            assert not left, f"{self.log}: the server left processes behind: {left}"

    def complete(self, prompts, max_tokens, concurrency=1, **sampling):
        """The greedy tokens of prompts of token ids, through /v1/completions."""
        if isinstance(max_tokens, int):
            max_tokens = [max_tokens] * len(prompts)
        with ThreadPoolExecutor(concurrency) as pool:
            futures = [
                pool.submit(self.completion, list(prompt), limit, **sampling)
                for prompt, limit in zip(prompts, max_tokens, strict=True)
            ]
            return [future.result() for future in futures]

    def completion(self, prompt, max_tokens, **sampling):
        """The new tokens of one prompt; by default greedy and of full length."""
        body = {"temperature": 0, "return_token_ids": True, **sampling}
        response = self.ask(prompt=prompt, max_tokens=max_tokens, **body)
        assert response.status_code == 200, response.text
        tokens: list[int] = response.json()["choices"][0]["token_ids"]
        return tokens

    def ask(self, rank=None, **body):
        """Ask for a completion of full length; the response, whatever its status."""
        body = {"model": str(self.model), "ignore_eos": True} | body
        return self.post("/v1/completions", body, rank)

    def post(self, path, body=None, rank=None):
        """POST a JSON body, to that rank if any; the response, whatever its status."""
        headers = {} if rank is None else {"X-data-parallel-rank": str(rank)}
        return direct(
            "POST", self.url + path, json=body, headers=headers, timeout=REQUEST_S
        )

    def metric(self, name, **labels):
        """A Prometheus sample, as by `metrics`."""
        return self.metrics(name, **labels)[0]

    def metrics(self, *names, **labels):
        """Prometheus samples by engine (data-parallel rank), summed over the rest.

        Only samples with these values of `labels` count. The front-end writes them in
        a thread while it goes on counting: a report that comes meanwhile is in those
        written last and not in those written first.
        """
        text = direct("GET", f"{self.url}/metrics", timeout=REQUEST_S).text
        values: list[dict[int, float]] = [defaultdict(float) for _ in names]
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name in names and labels.items() <= sample.labels.items():
                    engine = int(sample.labels["engine"])
                    values[names.index(sample.name)][engine] += sample.value
        return [dict(value) for value in values]

    def settled_metrics(self, *names):
        """As `metrics`, once the ranks have stopped: their steps outlast the answers.

        Raises:
            RuntimeError: they still step after `SETTLE_S` without requests.
        """
        before = None
        for _ in range(int(SETTLE_S / SETTLE_PAUSE_S)):
            now = self.metrics(*names)
            if now == before:
                return now
            before = now
            time.sleep(SETTLE_PAUSE_S)
        raise RuntimeError(
            f"{self.url}/metrics: expected {', '.join(names)} to stand still without "
            f"requests, found them changing for {SETTLE_S:.0f} s; see {self.log}"
        )

    def wait_until_ready(self):
        """Wait until it answers.

        Raises:
            RuntimeError: it exits or takes too long.
        """
        start = time.monotonic()
        said = 0.0
        while True:
            waited = time.monotonic() - start
            if (status := self.exit_status()) is not None:
                raise RuntimeError(
                    f"{self.log}: the server exited with {status} "
                    f"after {waited:.0f} s, before it was ready"
                )
            with contextlib.suppress(requests.ConnectionError, requests.Timeout):
                if direct("GET", f"{self.url}/health", timeout=30).ok:
                    return
            if waited > START_S:
                raise RuntimeError(f"{self.log}: not ready in {START_S:g} s")
            if waited - said >= 10:
                said = waited
                print(f"waiting for vllm serve: {waited:.0f} s", file=sys.stderr)
            time.sleep(0.1)
