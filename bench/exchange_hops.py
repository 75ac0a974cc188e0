# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Counts the hops in a row of an exchange of rows, and its processor time per rank.

    build/env/reference/bin/python bench/exchange_hops.py --output FILE

Every rank is a process in a network namespace of its own, with the process group that
vLLM makes; their only way to each other is a relay that holds every packet for a known
time. An exchange that takes three such times has three hops in a row, however slow the
machine is. Needs root (or `unshare --map-root-user`) and /dev/net/tun.

The processor time is that of the whole process, gloo's thread included, while the
packets are under way as on a network. It is a figure of this machine.
"""

import ctypes
import fcntl
import heapq
import math
import multiprocessing
import os
import select
import socket
import statistics
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import record
import torch
import torch.distributed as dist
from vllm.benchmarks.dp_balance.fingerprint import policies_fingerprint
from vllm.distributed.utils import stateless_init_torch_distributed_process_group
from vllm.v1.core.sched.balance.group.wire import WIDTH

RANKS = (2, 4, 8, 16, 32, 64)
DELAY_S = {2: 0.05, 4: 0.05, 8: 0.05, 16: 0.1, 32: 0.3, 64: 1.0}
"""More than the relay needs for all packets of an exchange, at so many ranks."""
HOP_S, STEP_S = 50e-6, 36e-3
"""The hop and the step that the exchange is put in relation to."""
PORT = 29555
TIMEOUT = timedelta(seconds=300)
_CLONE_NEWNET, _TUNSETIFF, _TUN_WITHOUT_HEADER = 0x40000000, 0x400454CA, 0x1001

Way = Callable[[], torch.Tensor]


def trade(
    group: dist.ProcessGroup,
    peers: Sequence[tuple[int, torch.Tensor, torch.Tensor]],
    tag: int,
) -> None:
    """Sends to each peer and receives from it: its rank, what goes, where it comes."""
    works = []
    for peer, mine, theirs in peers:
        works.append(group.send([mine], peer, tag))
        works.append(group.recv([theirs], peer, tag))
    for work in works:
        work.wait(TIMEOUT)


def ways(group: dist.ProcessGroup) -> dict[str, Way]:
    """Name: one exchange, which returns the rows of all ranks in their order."""
    size, rank = group.size(), group.rank()
    row = torch.full((WIDTH,), rank, dtype=torch.int64)
    received = torch.empty((size, WIDTH), dtype=torch.int64)
    views, sent = list(received.unbind()), torch.empty_like(received)

    def ring() -> torch.Tensor:
        dist.all_gather(views, row, group=group, async_op=True).wait(TIMEOUT)
        return received

    def all_to_all() -> torch.Tensor:
        sent.copy_(row)
        group.alltoall_base(received, sent, [], []).wait(TIMEOUT)
        return received

    def dissemination() -> torch.Tensor:
        """In each round, twice as many rows go twice as far."""
        have, tag = 1, 0
        received[0] = row
        while have < size:
            count = min(have, size - have)
            works = (
                group.send([received[:count]], (rank - have) % size, tag),
                group.recv([received[have : have + count]], (rank + have) % size, tag),
            )
            for work in works:
                work.wait(TIMEOUT)
            have, tag = have + count, tag + 1
        return received.roll(rank, 0)

    def grid() -> torch.Tensor:
        """First with the ranks of a line of a square, then with those of a column."""
        width = 2 ** math.ceil(math.log2(size) / 2)
        all_rows = received.view(-1, width, WIDTH)
        line, column = divmod(rank, width)
        all_rows[line, column] = row
        others = [i for i in range(width) if i != column]
        own = all_rows[line, column]
        peers = [(line * width + i, own, all_rows[line, i]) for i in others]
        trade(group, peers, tag=0)
        others = [i for i in range(size // width) if i != line]
        peers = [(i * width + column, all_rows[line], all_rows[i]) for i in others]
        trade(group, peers, tag=1)
        return received

    return {
        "all_gather (ring; before)": ring,
        "all_to_all (product)": all_to_all,
        "dissemination (send and receive)": dissemination,
        "lines and columns (send and receive)": grid,
    }


class Relay:
    """Carries packets between the ranks' network devices, and holds each for a time."""

    def __init__(self, devices: Sequence[int]) -> None:
        self.delay_s = 0.0
        self._devices = devices
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        poll = select.epoll()
        for device in self._devices:
            os.set_blocking(device, False)
            poll.register(device, select.EPOLLIN)
        poll.register(self._wake, select.EPOLLIN)
        queue: list[tuple[float, int, int, bytes]] = []
        count = 0
        while True:
            wait = max(0.0, queue[0][0] - time.monotonic()) if queue else -1
            for device, _ in poll.poll(wait):
                if device == self._wake:
                    return
                packet = os.read(device, 65536)
                if packet[0] >> 4 != 4:  # the devices also say hello in IPv6
                    continue
                to = int.from_bytes(packet[18:20], "big") - 1
                count += 1
                due = time.monotonic() + self.delay_s
                heapq.heappush(queue, (due, count, self._devices[to], packet))
            while queue and queue[0][0] <= time.monotonic():
                _, _, device, packet = heapq.heappop(queue)
                os.write(device, packet)

    def close(self) -> None:
        """Ends the thread."""
        os.write(self._woken, b".")
        self._thread.join()


def address(rank: int) -> str:
    """Of the rank's network device."""
    return "10.77." + ".".join(map(str, divmod(rank + 1, 256)))


def own_network(rank: int, to_relay: socket.socket) -> None:
    """Puts this process into a network whose one device leads to the relay."""
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWNET) != 0:
        sys.exit("error: no network namespace: run it as root, or in `unshare -r`")
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH", b"rows0", _TUN_WITHOUT_HEADER))
    for command in (
        "link set lo up",
        f"address add {address(rank)}/16 dev rows0",
        "link set rows0 up txqueuelen 10000",
    ):
        subprocess.run(["ip", *command.split()], check=True)
    socket.send_fds(to_relay, [b"."], [device])


def run_rank(
    rank: int, ranks: int, calls: int, to_relay: socket.socket, meet: Any, answers: Any
) -> None:
    """Body of a rank's process."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "rows0"
    own_network(rank, to_relay)
    meet.wait()
    group = stateless_init_torch_distributed_process_group(
        address(0), PORT, rank, ranks, "gloo"
    )
    wanted = list(range(ranks))
    meet.wait()
    meet.wait()  # from now on the relay waits
    for name, way in ways(group).items():
        for call in range(-1, calls):  # the first one warms up
            meet.wait()
            began, worked = time.monotonic(), time.process_time()
            rows = way()
            took, work = time.monotonic() - began, time.process_time() - worked
            assert rows[:, 0].tolist() == wanted, name
            if call >= 0:
                answers.put((name, call, took, work))
    meet.wait()


def measure(ranks: int, calls: int) -> list[dict[str, Any]]:
    """Hops and processor time of each way."""
    context = multiprocessing.get_context("fork")
    meet, answers = context.Barrier(ranks + 1), context.Queue()
    pairs = [socket.socketpair() for _ in range(ranks)]
    processes = [
        context.Process(
            target=run_rank,
            args=(rank, ranks, calls, pairs[rank][1], meet, answers),
            daemon=True,
        )
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    devices = [socket.recv_fds(pair[0], 1, 1)[1][0] for pair in pairs]
    relay = Relay(devices)
    meet.wait()
    meet.wait()
    relay.delay_s = DELAY_S[ranks]
    meet.wait()
    rows = []
    for _ in range(4):
        for _ in range(calls + 1):
            meet.wait()
        rows.append(_figures(ranks, [answers.get() for _ in range(ranks * calls)]))
        print(rows[-1], flush=True)
    meet.wait()
    for process in processes:
        process.join()
    relay.close()
    for device in devices:
        os.close(device)
    return rows


def _figures(
    ranks: int, answers: list[tuple[str, int, float, float]]
) -> dict[str, Any]:
    """Of one way: hops are the slowest rank's time over the relay's, least of calls."""
    (name,) = {answer[0] for answer in answers}
    slowest: dict[int, float] = {}
    for _, call, took, _ in answers:
        slowest[call] = max(took, slowest.get(call, 0.0))
    hops = min(slowest.values()) / DELAY_S[ranks]
    work = statistics.median(answer[3] for answer in answers)
    share = (round(hops) * HOP_S + work) / STEP_S
    return {
        "ranks": ranks,
        "way": name,
        "relay_s": DELAY_S[ranks],
        "hops": round(hops, 2),
        "processor_us_per_rank": round(work * 1e6),
        "share_of_a_36_ms_step": round(share, 4),
    }


def main() -> None:
    """Prints the figures, and writes them if asked to."""
    parser = record.parser(__doc__, calls=3)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS, choices=RANKS)
    arguments = parser.parse_args()
    results: list[object] = []
    for ranks in arguments.ranks:
        results += measure(ranks, arguments.calls)
    record.write(arguments, results, policies_fingerprint())


if __name__ == "__main__":
    main()
