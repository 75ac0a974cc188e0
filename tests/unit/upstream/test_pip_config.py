import os
from pathlib import Path

import pytest
from pypi_simple import PYPI_SIMPLE_ENDPOINT

from balance_tools.errors import ToolError
from balance_tools.upstream.index import (
    PipConfig,
    Source,
    read_pip_config,
    without_secrets,
)


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A configuration file of pip; no PIP_* variables.

    Not the only file: pip reads the machine's own before it (/etc/pip.conf).
    """
    for name in os.environ:
        if name.startswith("PIP_"):
            monkeypatch.delenv(name)
    file = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    return file


def locations(config: PipConfig) -> list[tuple[str, str]]:
    return [(source.setting, source.location) for source in config.sources]


def test_without_configuration_pips_own_index_is_used(
    pip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)  # no file at all, says pip
    assert locations(read_pip_config()) == [("index-url", PYPI_SIMPLE_ENDPOINT)]


def test_the_file_of_pip_is_read(pip: Path) -> None:
    pip.write_text(
        "[global]\n"
        "index-url = http://127.0.0.1:1/simple\n"
        "extra-index-url =\n    http://127.0.0.1:2/simple\n    file:///three\n"
        "find-links = /wheels\n"
        "proxy = http://127.0.0.1:9\n"
        "cert = /ca.pem\nclient-cert = /me.pem\n"
        "trusted-host = 127.0.0.1 other:8443\n"
        "timeout = 7\nretries = 1\n"
    )
    config = read_pip_config()
    assert locations(config) == [
        ("find-links", "/wheels"),
        ("index-url", "http://127.0.0.1:1/simple"),
        ("extra-index-url", "http://127.0.0.1:2/simple"),
        ("extra-index-url", "file:///three"),
    ]
    assert config.proxy == "http://127.0.0.1:9"
    assert (config.cert, config.client_cert) == ("/ca.pem", "/me.pem")
    assert config.trusted_hosts == {"127.0.0.1", "other:8443"}
    assert (config.timeout_s, config.retries) == (7, 1)


def test_variables_beat_the_file_as_in_pip(
    pip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip.write_text(
        "[global]\nindex-url = http://file/\ntimeout = 9\n"
        "[download]\nindex-url = http://section/\nextra-index-url =\nfind-links =\n"
    )
    assert locations(read_pip_config()) == [("index-url", "http://section/")]
    monkeypatch.setenv("PIP_INDEX_URL", "http://variable/")
    monkeypatch.setenv("PIP_DEFAULT_TIMEOUT", "3")
    config = read_pip_config()
    assert locations(config) == [("index-url", "http://variable/")]
    assert config.timeout_s == 3


def test_no_index_leaves_find_links_alone(
    pip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pip.write_text("[global]\nextra-index-url = http://other/\nfind-links = /wheels\n")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert locations(read_pip_config()) == [("find-links", "/wheels")]


def test_a_configuration_that_pip_cannot_read_is_an_error(pip: Path) -> None:
    pip.write_text("no section\n")
    with pytest.raises(ToolError, match="expected pip to list its configuration"):
        read_pip_config()


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://me:secret@host:8/simple?token=x", "https://host:8/simple"),
        ("https://host/simple", "https://host/simple"),
        ("file:///opt/simple", "file:///opt/simple"),
        ("/opt/wheels", "/opt/wheels"),
    ],
)
def test_what_is_shown_of_a_source_holds_no_secret(location: str, shown: str) -> None:
    assert without_secrets(location) == shown
    assert str(Source("index-url", location)) == f"index-url ({shown})"
