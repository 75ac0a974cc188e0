"""The liveness probe of a pod: whether every pod of the group is healthy.

    group-alive.py [URL …]

Without URLs, those of the pods of the StatefulSet. Exits with 1 and names the first
that is not healthy. A pod begins to ask when it is healthy itself, and then all are.
"""

import os
import sys
from urllib.request import ProxyHandler, build_opener

TIMEOUT_S = 5


def urls() -> list[str]:
    """Where the pods say that they are healthy."""
    if sys.argv[1:]:
        return sys.argv[1:]
    group = os.environ["POD_NAME"].rpartition("-")[0]
    pods = range(int(os.environ["HOSTS"]))
    return [f"http://{group}-{pod}.{group}-hosts:8000" for pod in pods]


def main() -> int:
    """Ask all, past any proxy."""
    opener = build_opener(ProxyHandler({}))
    for url in urls():
        try:
            with opener.open(f"{url}/health", timeout=TIMEOUT_S):
                pass
        except OSError as error:  # no answer, or an HTTP error
            print(f"{url}: not healthy: {error}")
            return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
