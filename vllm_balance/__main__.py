"""`python3 -m vllm_balance` in a clone is the command `vllm-balance`."""

import sys

if __name__ == "__main__":
    if sys.version_info < (3, 10):  # noqa: UP036, whatever python3 is may run a clone
        version = sys.version.split()[0]
        sys.exit(f"error: python3: expected 3.10 or newer, found {version}")
    from vllm_balance.cli import main

    sys.exit(main())
