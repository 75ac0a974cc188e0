"""`python3 -m vllm_balance` in a clone is the command `vllm-balance`."""

import sys

from vllm_balance.cli import main

if __name__ == "__main__":
    sys.exit(main())
