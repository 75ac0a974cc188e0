"""Which image is built from a wheel, and from which base."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from balance_tools.distribution import SETTINGS_NAME, load_settings
from balance_tools.errors import ToolError
from balance_tools.image.image import CONSTRAINTS, DOCKERFILES, plan_image
from balance_tools.kernels.socs import device_of, known_socs
from balance_tools.paths import Paths
from balance_tools.upstream.lock import load_lock

ROOT = Path(__file__).resolve().parents[3]
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    """A repository with an empty dist/."""
    (tmp_path / "dist").mkdir()
    for name in ("build", "docker", "upstream.toml"):
        (tmp_path / name).symlink_to(ROOT / name)
    return Paths(tmp_path)


def add_wheel(paths: Paths, label: str, tag: str, **record: Any) -> Path:
    """A wheel with nothing but a build record."""
    version = f"0.23.0+balance.1.{label}"
    path = paths.root / "dist" / f"vllm-{version}-{tag}.whl"
    defaults = {"commit": COMMIT, "dirty": False, "arch": None, "device": None}
    content = {**defaults, "distributions": {"vllm": version}, **record}
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vllm_balance/build.json", json.dumps(content))
    return path


def add_ascend(paths: Paths, device: str = "A2", python: str = "cp312") -> Path:
    tag = f"{python}-{python}-linux_aarch64"
    record = {"target": "ascend", "device": device, "arch": "aarch64"}
    return add_wheel(paths, device.strip("_").lower(), tag, **record)


@pytest.mark.parametrize(
    ("device", "system", "tag"),
    [
        ("A2", "ubuntu", "9.1.0-910b-ubuntu22.04-py3.12"),
        ("A3", "ubuntu", "9.1.0-a3-ubuntu22.04-py3.12"),
        ("_310P", "openeuler", "9.1.0-310p-openeuler24.03-py3.12"),
        ("A5", "openeuler", "9.1.0-950-openeuler24.03-py3.12"),
    ],
)
def test_the_wheel_and_the_system_say_the_base(
    paths: Paths, device: str, system: str, tag: str
) -> None:
    image = plan_image(paths, add_ascend(paths, device), system, None)
    assert image.base.endswith(f"/ascend/cann:{tag}")
    label, name = device.strip("_").lower(), tag.split("-")[2]
    assert image.name == f"vllm-balance:0.23.0-balance.1.{label}-{name}"


def test_the_manifests_name_the_image_that_is_made(paths: Paths) -> None:
    """The tag is that of an image of this release for A2, on the default system."""
    upstream = load_lock(paths.lock).vllm.version
    version = load_settings(ROOT / SETTINGS_NAME).version(upstream)
    wheel = add_wheel(
        paths,
        "a2",
        "cp312-cp312-linux_aarch64",
        target="ascend",
        device="A2",
        arch="aarch64",
        distributions={"vllm": f"{version}.a2"},
    )
    made = plan_image(paths, wheel, "ubuntu", None).name
    named = [
        f"{image['newName'].rpartition('/')[2]}:{image['newTag']}"
        for path in sorted((ROOT / "deploy").rglob("kustomization.yaml"))
        for image in yaml.safe_load(path.read_text()).get("images", [])
    ]
    assert len(named) >= 2
    assert set(named) == {made}


def test_a_release_that_names_no_base_is_refused(
    paths: Paths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(DOCKERFILES, "A2", "setup.py")
    with pytest.raises(ToolError, match=r"setup.py: expected a line FROM .*--base"):
        plan_image(paths, add_ascend(paths), "ubuntu", None)
    monkeypatch.setitem(DOCKERFILES, "A2", "Dockerfile.gone")
    with pytest.raises(ToolError, match=r"Dockerfile.gone: expected a line FROM"):
        plan_image(paths, add_ascend(paths), "ubuntu", None)


def test_every_chip_has_a_base(paths: Paths) -> None:
    pristine = Paths(ROOT).pristine / "vllm-ascend-0.23.0.post1"
    for soc in [*known_socs(pristine), "ascend950dt_9582"]:
        wheel = add_ascend(paths, device_of(soc, pristine))
        assert plan_image(paths, wheel, "ubuntu", None).base


def test_the_command_names_everything(paths: Paths) -> None:
    wheel = add_ascend(paths)
    command = plan_image(paths, wheel, "ubuntu", None).command("docker", "--pull")
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


def test_the_reference_wheel_needs_no_cann(paths: Paths) -> None:
    wheel = add_wheel(
        paths, "reference", "py3-none-any", target="reference", dirty=True
    )
    image = plan_image(paths, wheel, "ubuntu", None)
    assert (image.target, image.platform) == ("reference", None)
    assert "debian" in image.base
    assert image.revision == f"{COMMIT}-dirty"
    assert "--format" in image.command("podman")


def test_a_base_can_be_frozen(paths: Paths) -> None:
    base = "example.test/ascend/cann@sha256:" + "0" * 64
    image = plan_image(paths, add_ascend(paths, python="cp311"), "ubuntu", base)
    assert image.base == base
    assert image.name == "vllm-balance:0.23.0-balance.1.a2-custom"


def test_what_does_not_fit_is_refused(paths: Paths, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="expected a wheel for cp312"):
        plan_image(paths, add_ascend(paths, python="cp310"), "ubuntu", None)
    with pytest.raises(ToolError, match="--os: expected one of ubuntu, openeuler"):
        plan_image(paths, add_ascend(paths), "alpine", None)
    with pytest.raises(ToolError, match=r"expected a wheel in .*dist"):
        plan_image(paths, tmp_path / "vllm.whl", "ubuntu", None)
    foreign = paths.root / "dist" / "vllm-0.23.0-py3-none-any.whl"
    with zipfile.ZipFile(foreign, "w"):
        pass
    with pytest.raises(ToolError, match="expected a wheel that this project built"):
        plan_image(paths, foreign, "ubuntu", None)


def test_every_file_that_the_build_names_is_in_its_context() -> None:
    allowed = (ROOT / ".dockerignore").read_text().splitlines()
    for path in CONSTRAINTS.values():
        assert (ROOT / path).is_file()
        assert f"!{path}" in allowed or "!docker" in allowed
    assert allowed[0] == "*"
