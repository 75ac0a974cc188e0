"""What an exchange over several hosts takes from a step, in three minutes.

::

    build/env/reference/bin/python bench/hosts.py

Without root, behind `unshare --user --map-root-user`; nothing else should run
meanwhile.

Each host is a network namespace with one rank: upstream's busy loop, the scheduler, the
gate and gloo, with a device that only takes its time. A packet between two hosts is
late by the delay: a process carries it, as not every kernel has netem.
"""

import ctypes
import fcntl
import heapq
import itertools
import logging
import multiprocessing
import os
import select
import statistics
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT

from dp_loop import LoopEngine, StandInExecutor
from dp_ranks import Ranks, loop_arguments
from vllm_balance.core.policies.wishes import first_wish, next_wish
from vllm_balance.reference import tiny_models

STEP_S = 0.05
DELAYS_MS = (0.1, 1.0, 5.0)
"""Of a packet on its way."""
HOSTS = (2, 4)
WARM_UP, STEPS = 10, 64
WINDOW = 32
"""Steps whose mean is one figure: in one of so many upstream's ranks agree whether a
wave has ended, and ranks that hold nothing send rows."""
SYNC, ASYNC = "synchronous", "asynchronous"
OFF, ON = "off", "adaptive"
SWITCHED_OFF, LATE = "adaptive, switched off", "adaptive, rows sent after the step"

_NEW_NET = 0x40000000
_TUN, _NO_HEADER, _SET_TUN = 0x0001, 0x1000, 0x400454CA
_libc = ctypes.CDLL(None, use_errno=True)


class Host(NamedTuple):
    """A network namespace that lives as long as its descriptors are open."""

    namespace: int
    device: int
    """From which its packets are read, and to which those for it are written."""


def _check(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(
            number,
            f"{os.strerror(number)}: hosts needs root; "
            "run it by `unshare --user --map-root-user`",
        )


def _address(host: int) -> str:
    return f"10.78.0.{host + 1}"


def _host(number: int) -> Host:
    """Enters a new namespace, and gives it its one interface."""
    _check(_libc.unshare(_NEW_NET))
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    request = struct.pack("16sH22x", b"eth0", _TUN | _NO_HEADER)
    fcntl.ioctl(device, _SET_TUN, request)
    for command in (
        "ip link set lo up",
        f"ip address add {_address(number)}/24 dev eth0",
        "ip link set eth0 up",
    ):
        subprocess.run(command.split(), check=True)
    return Host(os.open("/proc/self/ns/net", os.O_RDONLY), device)


@contextmanager
def network(hosts: int, delay_ms: float) -> Iterator[list[Host]]:
    """Hosts whose packets to each other are late."""
    home = os.open("/proc/self/ns/net", os.O_RDONLY)
    try:
        found = [_host(number) for number in range(hosts)]
    finally:
        _check(_libc.setns(home, _NEW_NET))
        os.close(home)
    devices = [host.device for host in found]
    context = multiprocessing.get_context("fork")
    carrier = context.Process(target=_carry, args=(devices, delay_ms), daemon=True)
    carrier.start()
    try:
        yield found
    finally:
        carrier.kill()
        carrier.join()
        for descriptor in itertools.chain(*found):
            os.close(descriptor)


def _carry(devices: Sequence[int], delay_ms: float) -> None:
    """Carries packets to the host that the last byte of their address says."""
    late: list[tuple[float, int, int, bytes]] = []
    numbers = itertools.count()
    while True:
        wait = late[0][0] - time.monotonic() if late else None
        ready, _, _ = select.select(devices, (), (), wait and max(0.0, wait))
        now = time.monotonic()
        for device in ready:
            packet = os.read(device, 65536)
            if packet[0] >> 4 == 4 and 0 < packet[19] <= len(devices):
                to = devices[packet[19] - 1]
                heapq.heappush(late, (now + delay_ms / 1e3, next(numbers), to, packet))
        while late and late[0][0] <= now:
            _, _, to, packet = heapq.heappop(late)
            os.write(to, packet)


class _Answer(Future):  # type: ignore[type-arg]
    """Is there when the device has ended its step."""

    def __init__(self, output: Any, end: float) -> None:
        super().__init__()
        self._output, self._end = output, end

    def result(self, timeout: float | None = None) -> Any:
        """Waits for it."""
        _sleep_until(self._end)
        return self._output


def _sleep_until(end: float) -> None:
    time.sleep(max(0.0, end - time.monotonic()))


class _Device(StandInExecutor):
    """Each step takes its time, after the one before it."""

    _end = 0.0

    def execute_model(self, scheduler_output: Any, non_block: bool = False) -> Any:
        """Starts a step."""
        if not scheduler_output.num_scheduled_tokens:
            return _Answer(EMPTY_MODEL_RUNNER_OUTPUT, 0.0)
        super().execute_model(scheduler_output, non_block)
        self._end = max(time.monotonic(), self._end) + STEP_S
        return _Answer(None, 0.0)

    def sample_tokens(self, grammar_output: Any, non_block: bool = False) -> Any:
        """Its tokens."""
        answer = _Answer(self._output, self._end)
        return answer if non_block else answer.result()

    def execute_dummy_batch(self) -> None:
        """A step without requests."""
        self._end = max(time.monotonic(), self._end) + STEP_S
        _sleep_until(self._end)


class _Engine(LoopEngine):
    """A rank on its host."""

    executor = _Device

    def __init__(self, vllm_config: Any, trace: Any) -> None:
        rank = vllm_config.parallel_config.data_parallel_rank
        namespace = vllm_config.additional_config["namespaces"][rank]
        _check(_libc.setns(namespace, _NEW_NET))
        os.environ["GLOO_SOCKET_IFNAME"] = "eth0"
        super().__init__(vllm_config, trace)

    def _record(self, output: Any) -> None:
        if output.num_scheduled_tokens:
            self.trace.steps.append((time.monotonic(), self.current_wave))


def step_times(
    model: Path, hosts: int, delay_ms: float, kind: str, scheduling: str
) -> list[float]:
    """Microseconds that a step of rank 0 takes, in steady state, of each `WINDOW`."""
    with network(hosts, delay_ms) as found:
        arguments = loop_arguments(
            model,
            data_parallel_balance=OFF if kind == OFF else ON,
            data_parallel_size_local=hosts if kind == LATE else 1,
            data_parallel_address=_address(0),
            async_scheduling=scheduling == ASYNC,
            additional_config={
                "kv_blocks": 100,
                "namespaces": [host.namespace for host in found],
            },
        )
        with Ranks(hosts, _Engine, **arguments) as ranks:
            if kind == SWITCHED_OFF:
                ranks.call("balance_policy", next_wish(first_wish(ON), OFF))
            for rank in range(hosts):
                ranks.submit(rank, f"{rank}", 5, WARM_UP + STEPS)
            ranks.drain()
            trace, _ = ranks.stop()[0]
    starts = [start for start, _ in trace.steps[WARM_UP : WARM_UP + STEPS]]
    ends = starts[WINDOW:]
    return [1e6 * (b - a) / WINDOW for a, b in zip(starts, ends, strict=False)]


def kinds(hosts: int, delay_ms: float) -> Iterator[tuple[str, str]]:
    """What is tried with so many hosts: scheduling, and balance."""
    yield from ((SYNC, kind) for kind in (OFF, ON, LATE))
    if (hosts, delay_ms) == (HOSTS[-1], DELAYS_MS[-1]):
        yield SYNC, SWITCHED_OFF
        yield from ((ASYNC, kind) for kind in (OFF, ON, SWITCHED_OFF))


def main() -> None:
    """Prints the median of a step of 50 ms, with balance off and on."""
    logging.getLogger("vllm").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder:
        model = tiny_models.make("moe", Path(folder))
        for hosts, delay_ms in itertools.product(HOSTS, DELAYS_MS):
            for scheduling, kind in kinds(hosts, delay_ms):
                times = step_times(model, hosts, delay_ms, kind, scheduling)
                median = statistics.median(times) / 1e3
                of = f"{scheduling}, {hosts} hosts, {delay_ms:g} ms, {kind}"
                print(f"{of}: {median:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
