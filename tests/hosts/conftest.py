"""Fixtures of the tests with several hosts, which run in a network of their own.

Run them by `make test-hosts`, which starts them like this::

    unshare --net --pid --fork --kill-child --mount-proc ENV/bin/pytest tests/hosts
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

# Before anything imports transformers or vllm. No proxy is on the way to the hosts.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["NO_PROXY"] = "*"

from deployment import MODES, Group
from model_fixtures import moe_model, moe_samples
from netns import in_own_namespace, network


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--every", action="store_true", help="three hosts too, and restart every mode"
    )


def pytest_sessionstart() -> None:
    if not in_own_namespace():
        raise pytest.UsageError(
            "tests/hosts: expected a network namespace with no interface but the "
            "loopback, found others; run `make test-hosts`"
        )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run the tests of a group in every mode, then with the next number of hosts."""
    if "group" in metafunc.fixturenames:
        numbers = (2, 3) if metafunc.config.getoption("every") else (2,)
        kinds = [(mode, number) for number in numbers for mode in MODES]
        names = [f"{mode}, {number} hosts" for mode, number in kinds]
        metafunc.parametrize("group", kinds, ids=names, indirect=True, scope="module")


@pytest.fixture(scope="module")
def group(
    request: pytest.FixtureRequest,
    moe_model: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Group]:
    """Hosts with two ranks each that serve together; one group for all its tests."""
    mode, number = request.param
    folder = tmp_path_factory.mktemp(f"{mode}-{number}")
    with network(number) as hosts, Group(mode, hosts, moe_model, folder) as found:
        yield found
