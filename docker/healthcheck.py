#!/opt/vllm/bin/python -I
"""Checks the health of servers: of the container, or of a group of pods.

    healthcheck.py [group | ADDRESS …]

Without arguments the server of this container, by default that of `vllm serve` without
--port; VLLM_BALANCE_HEALTH is another address. `group` is every pod of the StatefulSet:
a pod begins with this check when it is healthy itself, and then all are. Exits with 1
and names the first unhealthy one.
"""

from __future__ import annotations

import os
import sys
import time
from threading import Thread
from urllib.request import ProxyHandler, build_opener

DEFAULT = "http://127.0.0.1:8000/health"
TIMEOUT_S = 8
"""For all together, with name resolution: less than the time-out of the probes."""


def addresses() -> list[str]:
    if sys.argv[1:] != ["group"]:
        return sys.argv[1:] or [os.environ.get("VLLM_BALANCE_HEALTH", DEFAULT)]
    group = os.environ["POD_NAME"].rpartition("-")[0]
    pods = range(int(os.environ["HOSTS"]))
    return [f"http://{group}-{pod}.{group}-hosts:8000/health" for pod in pods]


def main() -> int:
    """Ask all at once, past any proxy, so that a slow one does not delay the others."""
    opener = build_opener(ProxyHandler({}))
    problems = dict.fromkeys(addresses(), f"no answer in {TIMEOUT_S} s")

    def ask(address: str) -> None:
        try:
            with opener.open(address, timeout=TIMEOUT_S):
                problems[address] = ""
        except Exception as error:  # no answer, an HTTP error, or no HTTP at all
            problems[address] = str(error)

    # Not a pool: at its end it would wait for a name that is not resolved.
    threads = [Thread(target=ask, args=[url], daemon=True) for url in problems]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for address, problem in problems.items():
        if problem:
            print(f"{address}: expected the server to be well, found {problem}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
