import sys
from subprocess import run

import pytest

from balance_tools.errors import ToolError
from balance_tools.upstream.pip_config import (
    PipSettings,
    Source,
    pip_settings,
    without_secrets,
)


@pytest.fixture
def pip(monkeypatch, tmp_path):
    """A configuration file of pip, beside the machine's own (/etc/pip.conf)."""
    file = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    for name in ("INDEX_URL", "EXTRA_INDEX_URL", "FIND_LINKS", "NO_INDEX"):
        monkeypatch.delenv(f"PIP_{name}", raising=False)
    return file


def locations():
    return [(one.setting, one.location) for one in pip_settings().sources]


def test_the_configuration_of_pip_is_read(pip, monkeypatch):
    pip.write_text(
        "[global]\nindex-url = http://one/\nfind-links = /wheels\n"
        "[download]\nextra-index-url =\n    http://two/\n    file:///three\n"
    )
    extra = [("extra-index-url", "http://two/"), ("extra-index-url", "file:///three")]
    found = [("find-links", "/wheels"), ("index-url", "http://one/"), *extra]
    assert locations() == found
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert locations() == found[:1]


def test_a_configuration_that_pip_cannot_read_is_an_error(pip):
    pip.write_text("no section\n")
    with pytest.raises(ToolError, match="expected it to read its configuration"):
        pip_settings()


def test_where_no_index_is_configured_it_is_the_one_that_pip_takes():
    said = run([sys.executable, "-m", "pip", "help", "download"], capture_output=True)
    (source,) = PipSettings({}).sources
    assert source.setting == "index-url"
    assert source.location.rstrip("/") in "".join(said.stdout.decode().split())


@pytest.mark.parametrize(
    ("location", "shown"),
    [
        ("https://me:secret@host:8/simple?token=x", "https://host:8/simple"),
        ("file:///opt/simple", "file:///opt/simple"),
        ("/opt/wheels", "/opt/wheels"),
    ],
)
def test_what_is_shown_of_a_source_holds_no_secret(location, shown):
    assert without_secrets(location) == shown
    assert str(Source("index-url", location)) == f"index-url ({shown})"
