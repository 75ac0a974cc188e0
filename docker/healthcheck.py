#!/opt/vllm/bin/python -I
"""Asks the server of this container how it is; exits with 0 if it is well.

VLLM_BALANCE_HEALTH is the address, by default that of `vllm serve` without --port.
"""

from __future__ import annotations

import os
import sys
from http.client import HTTPException
from urllib.request import ProxyHandler, build_opener

DEFAULT = "http://127.0.0.1:8000/health"
TIMEOUT_S = 5


def main() -> int:
    """One request, past any proxy."""
    address = os.environ.get("VLLM_BALANCE_HEALTH", DEFAULT)
    try:
        with build_opener(ProxyHandler({})).open(address, timeout=TIMEOUT_S) as answer:
            print(f"{address}: {answer.status}")
    # Refused, timed out, 4xx, 5xx; no address; no HTTP.
    except (OSError, ValueError, HTTPException) as error:
        print(f"{address}: expected the server to be well, found {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
