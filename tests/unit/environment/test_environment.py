"""The environment of the wheel: what cannot be made is refused, with pip's reason."""

import tempfile
import venv

import pytest

from balance_tools.environment import reference
from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from stub_wheels import write_stub


def test_a_folder_too_deep_for_sockets_is_refused_before(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{'x' * 80}")
    with pytest.raises(ToolError, match=r"TMPDIR: expected .* at most 70 bytes"):
        reference.make_env(Paths(tmp_path), tmp_path / "a.whl")
    assert list(tmp_path.iterdir()) == []


def test_the_reason_of_pip_is_in_the_error(index, tmp_path):
    wants = {"requires": ["triton==3.7.1"]}
    for name, version, more in (("torch", "2.13.0", wants), ("triton", "3.7.1", {})):
        wheel = write_stub(tmp_path, name, version, **more)
        index.add(wheel.name, wheel.read_bytes())
    venv.create(tmp_path / "env")
    (constraints := tmp_path / "constraints.txt").write_text("triton==3.9.0\n")
    words = ("install", f"--constraint={constraints}", "torch==2.13.0")
    with pytest.raises(ToolError, match=r"torch 2\.13\.0 depends on triton") as caught:
        reference.pip(tmp_path / "env/bin/python", *words)
    assert "Traceback" not in str(caught.value)
