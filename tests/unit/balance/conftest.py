"""Loads the policies as the package `balance`, without vllm and without torch."""

import importlib.util
import sys
from pathlib import Path

FOLDER = Path(__file__).parents[3] / "vllm/v1/core/sched/balance"


def _load():
    spec = importlib.util.spec_from_file_location(
        "balance", FOLDER / "__init__.py", submodule_search_locations=[str(FOLDER)]
    )
    module = importlib.util.module_from_spec(spec)
    sys.modules["balance"] = module
    spec.loader.exec_module(module)


_load()
