"""Fixtures that several unit tests share."""

import os
import signal

import pytest

from balance_tools.contract import fit
from balance_tools.upstream import index as upstream_index
from balance_tools.upstream.pip_config import PipSettings
from index_samples import SampleIndex
from rebase_samples import make_root
from repo_samples import SampleRepo
from slowest import pytest_addoption, pytest_configure  # noqa: F401

# The workers of xdist set it; what a test starts must not import what the tests import.
os.environ.pop("PYTHONPATH", None)
# A hook that runs the tests sets them; what tests make has repositories of its own.
for name in [name for name in os.environ if name.startswith("GIT_")]:
    del os.environ[name]


def pytest_sessionstart():
    """In the background a shell ignores SIGINT, and so would what a test interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def index(monkeypatch):
    """A package index on this machine, empty at first: the only one that pip knows."""
    server = SampleIndex()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", server.url)
    monkeypatch.setenv("PIP_RETRIES", "2")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    # Each `pip config list` takes a third of a second, and here no file is configured.
    monkeypatch.setattr(upstream_index, "pip_settings", settings_of_environment)
    yield server
    server.stop()


def settings_of_environment():
    pip = [name for name in os.environ if name.startswith("PIP_")]
    return PipSettings({x[4:].lower().replace("_", "-"): os.environ[x] for x in pip})


@pytest.fixture
def repo(tmp_path, index):
    """A git repository like ours, whose upstreams are tiny sdists on `index`."""
    return SampleRepo.make(tmp_path / "repo", index)


@pytest.fixture
def types_fit(monkeypatch):
    """mypy, which takes seconds, is not asked."""
    monkeypatch.setattr(fit, "type_check", lambda root, files: ())


@pytest.fixture
def root(tmp_path):
    """A repository like ours, whose series can be rebased."""
    return make_root(tmp_path)
