"""Tiny models, and what Hugging Face writes with them."""

import os
import pickle

import pytest
from filelock import FileLock

from hugging_face import samples
from vllm_balance.reference import tiny_models


@pytest.fixture(scope="session")
def moe_model(tmp_path_factory):
    return tiny_models.make("moe", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def dense_model(tmp_path_factory):
    return tiny_models.make("dense", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def moe_samples(moe_model, tmp_path_factory):
    return _shared(tmp_path_factory, "moe", moe_model)


@pytest.fixture(scope="session")
def dense_samples(dense_model, tmp_path_factory):
    return _shared(tmp_path_factory, "dense", dense_model)


def _shared(tmp_path_factory, name, model):
    """What takes seconds is written once for all workers of xdist."""
    folder = tmp_path_factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        folder = folder.parent
    file = folder / f"{name}-samples"
    with FileLock(f"{file}.lock"):
        if not file.exists():
            file.write_bytes(pickle.dumps(samples(model)))
    return pickle.loads(file.read_bytes())
