"""Which image is built from a wheel, and from which base."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from balance_tools.errors import ToolError
from balance_tools.image import CONSTRAINTS, plan_image
from balance_tools.paths import Paths
from balance_tools.socs import device_of, known_socs

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with an empty dist/."""
    (tmp_path / "dist").mkdir()
    (tmp_path / "docker").symlink_to(ROOT / "docker")
    return tmp_path


def add_wheel(root: Path, label: str, tag: str, **record: Any) -> Path:
    """A wheel with nothing but a build record."""
    version = f"0.23.0+balance.1.{label}"
    path = root / "dist" / f"vllm-{version}-{tag}.whl"
    defaults = {"commit": COMMIT, "dirty": False, "arch": None, "device": None}
    content = {**defaults, "distributions": {"vllm": version}, **record}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm_balance/build.json", json.dumps(content))
    return path


def add_ascend(root: Path, device: str = "A2", python: str = "cp312") -> Path:
    tag = f"{python}-{python}-linux_aarch64"
    record = {"target": "ascend", "device": device, "arch": "aarch64"}
    return add_wheel(root, device.strip("_").lower(), tag, **record)


@pytest.mark.parametrize(
    ("device", "system", "base"),
    [
        ("A2", "ubuntu", "quay.io/ascend/cann:9.1.0-910b-ubuntu22.04-py3.12"),
        ("A3", "ubuntu", "quay.io/ascend/cann:9.1.0-a3-ubuntu22.04-py3.12"),
        ("_310P", "openeuler", "quay.io/ascend/cann:9.1.0-310p-openeuler24.03-py3.12"),
        ("A5", "openeuler", "quay.io/ascend/cann:9.1.0-950-openeuler24.03-py3.12"),
    ],
)
def test_the_wheel_and_the_system_say_the_base(
    root: Path, device: str, system: str, base: str
) -> None:
    image = plan_image(root, add_ascend(root, device), system, None)
    assert image.base == base
    label = device.strip("_").lower()
    assert image.name.startswith(f"vllm-balance:0.23.0-balance.1.{label}-{system}")
    dockerfiles = (Paths(ROOT).pristine / "vllm-ascend-0.23.0.post1").glob(
        "Dockerfile*"
    )
    assert [1 for path in dockerfiles if f"FROM {base}" in path.read_text().split("\n")]


def test_every_chip_has_a_base(root: Path) -> None:
    pristine = Paths(ROOT).pristine / "vllm-ascend-0.23.0.post1"
    for soc in [*known_socs(pristine), "ascend950dt_9582"]:
        wheel = add_ascend(root, device_of(soc, pristine))
        assert plan_image(root, wheel, "ubuntu", None).base


def test_the_command_names_everything(root: Path) -> None:
    wheel = add_ascend(root)
    command = plan_image(root, wheel, "ubuntu", None).command("docker", "--pull")
    assert command[:4] == ["docker", "build", "--file", "docker/Dockerfile"]
    assert command[-2:] == ["--pull", "."]
    assert command[command.index("--platform") + 1] == "linux/arm64"
    given = {
        name: value
        for name, _, value in (
            command[i + 1].partition("=")
            for i, word in enumerate(command)
            if word == "--build-arg"
        )
    }
    assert given["WHEEL"] == f"dist/{wheel.name}"
    assert given["TARGET"] == "ascend"
    assert (given["VERSION"], given["REVISION"]) == ("0.23.0+balance.1.a2", COMMIT)
    text = (ROOT / "docker" / "Dockerfile").read_text()
    assert set(given) == {
        line.split()[1].partition("=")[0]
        for line in text.splitlines()
        if line.startswith("ARG ")
    }


def test_the_reference_wheel_needs_no_cann(root: Path) -> None:
    wheel = add_wheel(root, "reference", "py3-none-any", target="reference", dirty=True)
    image = plan_image(root, wheel, "ubuntu", None)
    assert (image.target, image.platform) == ("reference", None)
    assert "debian" in image.base
    assert image.revision == f"{COMMIT}-dirty"
    assert "--format" in image.command("podman")


def test_a_base_can_be_frozen(root: Path) -> None:
    base = "quay.io/ascend/cann@sha256:" + "0" * 64
    image = plan_image(root, add_ascend(root, python="cp311"), "ubuntu", base)
    assert image.base == base
    assert image.name == "vllm-balance:0.23.0-balance.1.a2-custom"


def test_what_does_not_fit_is_refused(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="expected a wheel for cp312"):
        plan_image(root, add_ascend(root, python="cp310"), "ubuntu", None)
    with pytest.raises(ToolError, match="--os: expected one of ubuntu, openeuler"):
        plan_image(root, add_ascend(root), "alpine", None)
    with pytest.raises(ToolError, match=r"expected a wheel in .*dist"):
        plan_image(root, tmp_path / "vllm.whl", "ubuntu", None)
    foreign = root / "dist" / "vllm-0.23.0-py3-none-any.whl"
    with zipfile.ZipFile(foreign, "w"):
        pass
    with pytest.raises(ToolError, match="expected a wheel that this project built"):
        plan_image(root, foreign, "ubuntu", None)


def test_every_file_that_the_build_names_is_in_its_context() -> None:
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    for path in CONSTRAINTS.values():
        assert (ROOT / path).is_file()
        assert f"!{path}" in allowed or "!docker" in allowed
    assert allowed[0] == "*"
