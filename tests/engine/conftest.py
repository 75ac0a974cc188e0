"""Fixtures of the engine tests: the installed vLLM, tiny models, expected outputs.

Run them from an environment in which the reference wheel is installed. Not by
``python -m pytest``, which would put the vendored source tree on the import path::

    ENV/bin/pytest tests/engine
"""

import importlib.util
import os
from pathlib import Path

import pytest

# Before anything imports transformers or vllm.
os.environ["HF_HUB_OFFLINE"] = "1"
# The workers of xdist set it; what a test starts must not import what the tests import.
os.environ.pop("PYTHONPATH", None)

from model_fixtures import dense_model, dense_samples, moe_model, moe_samples
from slowest import pytest_addoption as add_slowest
from slowest import pytest_configure

REPOSITORY = Path(__file__).parents[2]


def pytest_addoption(parser):
    add_slowest(parser)
    parser.addoption("--waves", type=int, default=64, help="waves of test_waves.py")


def vllm_folder():
    """The folder of the vllm package that the tests and their servers use."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def pytest_sessionstart():
    if vllm_folder().is_relative_to(REPOSITORY / "vllm"):
        raise pytest.UsageError(
            f"{vllm_folder()}: the source tree is on the import path; these tests "
            "check an installed wheel: run ENV/bin/pytest, not python -m pytest"
        )
