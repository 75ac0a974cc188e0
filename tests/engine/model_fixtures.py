"""Tiny models, and what Hugging Face writes with them."""

from pathlib import Path

import pytest

from hugging_face import Sample, samples
from vllm_balance.reference import tiny_models


@pytest.fixture(scope="session")
def moe_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("moe", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def dense_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.make("dense", tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="session")
def drafting_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model with MTP, and of two others that draft for it."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("deepseek", "eagle3", "draft"):
        tiny_models.make(name, folder)
    return folder


@pytest.fixture(scope="session")
def moe_samples(moe_model: Path) -> list[Sample]:
    return samples(moe_model)


@pytest.fixture(scope="session")
def dense_samples(dense_model: Path) -> list[Sample]:
    return samples(dense_model)
