"""The environment of the wheel: what torch costs is said first, and why pip failed."""

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
SIZE = 50_000
"""Of the library that torch brings for GPUs here, in bytes."""


def add(index, name, version, *requires, size=0):
    """A wheel of this package, on the index."""
    with tempfile.TemporaryDirectory() as folder:
        files = {f"{name}.bin": "0" * size}
        wheel = write_stub(Path(folder), name, version, requires=requires, files=files)
        index.add(wheel.name, wheel.read_bytes())


@pytest.fixture(params=["", "triton==3.7.1", "triton==3.9.0"])
def index_with_torch(request, index):
    """Builds of torch: for CPUs, and for GPUs with the triton that each wants."""
    brings = filter(None, [request.param])
    add(index, "torch", "2.13.0", *brings, size=SIZE)
    for version in ("3.7.1", "3.9.0"):
        add(index, "triton", version)
    return index


@pytest.fixture
def python(tmp_path):
    """Of an empty environment."""
    venv.create(tmp_path / "env")
    return tmp_path / "env" / "bin" / "python"


def test_the_set_fits_every_build_of_torch(index_with_torch, python, capfd):
    reference.look_ahead(python, f"--constraint={CONSTRAINTS}", TORCH)
    assert "pip is about to fetch" not in capfd.readouterr().err


def test_gigabytes_are_announced(index, python, monkeypatch, capfd):
    add(index, "torch", "2.13.0", "nvidia_nccl")
    add(index, "nvidia_nccl", "1", size=SIZE)
    monkeypatch.setattr(reference, "GIGABYTE", 10_000)
    reference.look_ahead(python, TORCH)
    said = capfd.readouterr().err
    assert f"pip is about to fetch 5.1 GB for {TORCH}" in said
    assert "CPU build" in said
    assert "//" not in said  # no index is named


def test_a_disk_without_room_is_refused_before(index, python, monkeypatch):
    add(index, "torch", "2.13.0")
    monkeypatch.setattr(reference, "BESIDE_TORCH_GB", 10**6)
    with pytest.raises(ToolError, match=r"expected 1000000\.0 GB of free disk"):
        reference.look_ahead(python, TORCH)


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
        reference.look_ahead(python, f"--constraint={constraints}", TORCH)
    said = str(caught.value)
    assert "torch 2.13.0 depends on triton==3.7.1" in said
    assert "constraint) triton==3.9.0" in said
    assert "Traceback" not in said
