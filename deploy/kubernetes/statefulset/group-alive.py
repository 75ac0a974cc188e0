"""The liveness probe of a pod: whether every pod of the group is healthy.

    group-alive.py [URL …]

Without URLs, those of the pods of the StatefulSet. Exits with 1 and names the first
that is not healthy. A pod begins to ask when it is healthy itself, and then all are.
"""

import os
import sys
import time
from threading import Thread
from urllib.request import ProxyHandler, build_opener

TIMEOUT_S = 8
"""For all pods together, looking up their names included: less than the probe has."""


def urls() -> list[str]:
    """Where the pods say that they are healthy."""
    if sys.argv[1:]:
        return sys.argv[1:]
    group = os.environ["POD_NAME"].rpartition("-")[0]
    pods = range(int(os.environ["HOSTS"]))
    return [f"http://{group}-{pod}.{group}-hosts:8000" for pod in pods]


def main() -> int:
    """Ask all at once, past any proxy: one that is slow keeps nobody waiting."""
    opener = build_opener(ProxyHandler({}))
    said = dict.fromkeys(urls(), f"no answer in {TIMEOUT_S} s")

    def ask(url: str) -> None:
        try:
            with opener.open(f"{url}/health", timeout=TIMEOUT_S):
                said[url] = ""
        except Exception as error:  # no answer, an HTTP error, or no HTTP at all
            said[url] = str(error)

    # Not a pool: it would wait at the end for a name that nobody resolves.
    threads = [Thread(target=ask, args=[url], daemon=True) for url in said]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + TIMEOUT_S
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    for url, problem in said.items():
        if problem:
            print(f"{url}: not healthy: {problem}")
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
