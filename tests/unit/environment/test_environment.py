"""The environment of the wheel: one set for all builds of torch, and why pip failed."""

import tempfile
import venv
from pathlib import Path

import pytest

from balance_tools.environment import reference
from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from pinned import CONSTRAINTS
from stub_wheels import write_stub

TORCH = "torch==2.13.0"


def add(index, name, version, *requires):
    """A wheel of this package, on the index."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = write_stub(Path(folder), name, version, requires=requires)
        index.add(wheel.name, wheel.read_bytes())


@pytest.fixture
def python(tmp_path):
    """Of an empty environment."""
    venv.create(tmp_path / "env")
    return tmp_path / "env" / "bin" / "python"


@pytest.mark.parametrize("brings", [(), ("triton==3.9.0",)])
def test_the_set_fits_every_build_of_torch(brings, index, python):
    """For CPUs, and for GPUs with the triton that each wants."""
    add(index, "torch", "2.13.0", *brings)
    add(index, "triton", "3.9.0")
    reference.pip(python, "install", f"--constraint={CONSTRAINTS}", TORCH)


def test_a_folder_too_deep_for_sockets_is_refused_before(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", f"/tmp/{'x' * 80}")
    with pytest.raises(ToolError, match=r"TMPDIR: expected .* at most 70 bytes"):
        reference.make_env(Paths(tmp_path), tmp_path / "a.whl")
    assert list(tmp_path.iterdir()) == []


def test_the_reason_of_pip_is_in_the_error(index, python, tmp_path):
    add(index, "torch", "2.13.0", "triton==3.7.1")
    add(index, "triton", "3.7.1")
    constraints = tmp_path / "constraints.txt"
    constraints.write_text("triton==3.9.0\n")
    with pytest.raises(ToolError) as caught:
        reference.pip(python, "install", f"--constraint={constraints}", TORCH)
    said = str(caught.value)
    assert "torch 2.13.0 depends on triton==3.7.1" in said
    assert "Traceback" not in said
