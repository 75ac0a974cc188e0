"""Lets the pure modules inside vllm/ be imported without vLLM's own, and its torch."""

import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[1]

# Upstream's __init__ files import torch; our packages below them need only a place.
for name in (
    "vllm",
    "vllm.benchmarks",
    "vllm.v1",
    "vllm.v1.core",
    "vllm.v1.core.sched",
):
    package = ModuleType(name)
    package.__path__ = [str(ROOT.joinpath(*name.split(".")))]
    sys.modules.setdefault(name, package)
