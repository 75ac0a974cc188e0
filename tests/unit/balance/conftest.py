"""Where the files are, and the board, which needs nothing of vLLM, as a module."""

import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
CORE = ROOT / "vllm_balance/core"
FOLDER = ROOT / "vllm/v1/core/sched/balance"

# The packages above it import torch; processes that tests start get this path, too.
sys.path.append(str(FOLDER / "front"))
