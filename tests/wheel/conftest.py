"""Wheels and environments that the tests of this folder share."""

import os
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from balance_tools.distribution import (
    ARCHES,
    PYTHONS,
    SETTINGS_NAME,
    Choice,
    load_settings,
)
from balance_tools.environment.reference import make_env
from balance_tools.files import remove_tree
from balance_tools.paths import Paths
from balance_tools.wheel.build import OF_THIS_PYTHON, build_wheel
from balance_tools.wheel.plan import make_plan
from environments import Environment, make_environment

# The workers of xdist set it; what a test starts must not import what the tests import.
os.environ.pop("PYTHONPATH", None)

ROOT = Path(__file__).resolve().parents[2]
VERSION = load_settings(ROOT / SETTINGS_NAME).version("0.23.0")
"""Without the label of a target."""
ASCEND = [Choice("ascend", python, arch) for python in PYTHONS for arch in ARCHES]
HERE = OF_THIS_PYTHON
"""The Ascend wheel that pip installs into an environment of this Python."""

Build = Callable[[Choice], Path]


@pytest.fixture(scope="session")
def paths() -> Paths:
    return Paths(ROOT)


def pytest_addoption(parser: pytest.Parser) -> None:
    """`make release` has its wheels inspected by these tests."""
    parser.addoption("--release", type=Path, help="take the wheels of this folder")


@pytest.fixture(scope="session")
def build(paths: Paths, pytestconfig: pytest.Config) -> Build:
    """Builds a wheel, once in a session, or takes it from the folder of a release."""
    if folder := pytestconfig.getoption("--release", None):
        return lambda choice: folder.resolve() / make_plan(paths, choice).filename
    return cache(lambda choice: build_wheel(paths, choice, paths.dist))


@pytest.fixture(scope="session")
def reference_wheel(build: Build) -> Path:
    return build(Choice())


@pytest.fixture(scope="session")
def installed(paths: Paths, reference_wheel: Path) -> Environment:
    """The environment with the reference wheel and all it requires."""
    return Environment(make_env(paths, reference_wheel))


OLDEST_PIP = pytest.param("pip==23.2.1", marks=pytest.mark.slow)
"""The oldest that we promise; it is fetched from the index."""


@pytest.fixture(scope="session", params=[OLDEST_PIP, None], ids=["oldest pip", "pip"])
def empty(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Environment:
    """An environment with the oldest pip, and one with that of this Python."""
    return make_environment(tmp_path_factory.mktemp("bare") / "env", request.param)


@pytest.fixture
def bare(empty: Environment) -> Iterator[Environment]:
    """The same, cleared of what the test has installed."""
    folders = (empty.packages, empty.folder / "bin")
    before = {path for folder in folders for path in folder.iterdir()}
    yield empty
    for path in {path for folder in folders for path in folder.iterdir()} - before:
        remove_tree(path)
