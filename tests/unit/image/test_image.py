"""Which image is built from a wheel, and from which base."""

import json
import os
import shutil
import subprocess
import zipfile
from pathlib import Path

import pytest
import yaml

from balance_tools.distribution import SETTINGS_NAME, load_settings
from balance_tools.paths import Paths
from balance_tools.upstream.lock import load_lock

ROOT = Path(__file__).resolve().parents[3]
LOCK = load_lock(ROOT / "upstream.toml")
PRISTINE = Paths(ROOT).pristine / f"vllm-ascend-{LOCK.vllm_ascend.version}"
VERSION = load_settings(ROOT / SETTINGS_NAME).version(LOCK.vllm.version)
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def root(tmp_path):
    """A repository with an empty dist/, and upstream's files that name the bases."""
    (tmp_path / "dist").mkdir()
    shutil.copytree(ROOT / "docker", tmp_path / "docker")
    shutil.copy(ROOT / "upstream.toml", tmp_path)
    copy = tmp_path / "build" / "pristine" / PRISTINE.name
    copy.mkdir(parents=True)
    for path in PRISTINE.glob("Dockerfile*"):
        shutil.copy(path, copy)
    return tmp_path


def add_wheel(root, label, tag, **record):
    version = f"{VERSION}.{label}"
    path = f"dist/vllm-{version}-{tag}.whl"
    defaults = {"commit": COMMIT, "dirty": False, "arch": None, "device": None}
    content = {**defaults, "distributions": {"vllm": version}, **record}
    with zipfile.ZipFile(root / path, "w") as archive:
        archive.writestr("vllm_balance/build.json", json.dumps(content))
    return path


def add_ascend(root, device="A2", python="cp312", label=""):
    record = {"target": "ascend", "device": device, "arch": "aarch64"}
    tag = f"{python}-{python}-linux_aarch64"
    return add_wheel(root, label or device.strip("_").lower(), tag, **record)


def build(root, *arguments, **variables):
    """What it would run, and the name of the image; or its complaint, and ""."""
    ended = subprocess.run(
        [root / "docker" / "build.sh", *arguments],
        env=os.environ | {"ENGINE": "echo"} | variables,
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        (line,) = [line for line in ended.stderr.splitlines() if line[:6] == "error:"]
        return line, ""
    command, name = ended.stdout.splitlines()
    return command, name


@pytest.mark.parametrize(
    ("device", "system", "tag"),
    [
        ("A2", "ubuntu", "910b-ubuntu22.04"),
        ("A3", "ubuntu", "a3-ubuntu22.04"),
        ("_310P", "openeuler", "310p-openeuler24.03"),
        ("A5", "openeuler", "950-openeuler24.03"),
    ],
)
def test_the_wheel_and_the_system_say_the_base(root, device, system, tag):
    command, name = build(root, add_ascend(root, device), OS=system)
    assert f"/ascend/cann:9.1.0-{tag}-py3.12 " in command
    label, system = device.strip("_").lower(), tag.split("-")[1]
    assert name == f"vllm-balance:{VERSION.replace('+', '-')}.{label}-{system}"


def test_the_manifests_name_the_image_that_is_made(root):
    """The tags are those of images of this release, on the default system."""
    named = {
        f"{name.rpartition('/')[2]}:{image['newTag']}"
        for path in sorted((ROOT / "deploy").rglob("kustomization.yaml"))
        for image in yaml.safe_load(path.read_text()).get("images", [])
        for name in [image.get("newName", image["name"])]
        if name.endswith("/vllm-balance")
    }
    a3 = add_ascend(root, "A3", label="ascend910.9391")
    assert named == {build(root, wheel)[1] for wheel in (add_ascend(root), a3)}


def test_the_command_names_everything(root):
    wheel = add_ascend(root)
    command, _ = build(root, wheel, "--pull", ENGINE="echo")
    assert command.startswith("build --file docker/Dockerfile --tag vllm-balance:")
    assert command.endswith(" --format docker --platform linux/arm64 --pull .")
    given = dict(w.split("=", 1) for w in command.split() if "=" in w)
    assert given["WHEEL"] == wheel
    assert given["TARGET"] == "ascend"
    assert (given["VERSION"], given["REVISION"]) == (f"{VERSION}.a2", COMMIT)
    text = (ROOT / "docker" / "Dockerfile").read_text().splitlines()
    wanted = {line.split()[1].split("=")[0] for line in text if line[:4] == "ARG "}
    assert set(given) == wanted


def test_the_reference_wheel_needs_no_cann(root):
    record = {"target": "reference", "dirty": True}
    wheel = add_wheel(root, "reference", "py3-none-any", **record)
    command, _ = build(root, wheel)
    assert "--platform" not in command
    for given in ("BASE=debian", f"N={COMMIT}-dirty", "NTS=tests/constraints.txt"):
        assert given in command


def test_a_base_can_be_frozen(root):
    base = "example.test/ascend/cann@sha256:" + "0" * 64
    command, name = build(root, add_ascend(root, python="cp311"), BASE=base)
    assert f"BASE={base} " in command
    assert name.endswith(".a2-custom")


def test_what_does_not_fit_is_refused(root):
    ascend = add_ascend(root)
    assert "a wheel for cp312" in build(root, add_ascend(root, python="cp310"))[0]
    assert "OS: expected ubuntu or" in build(root, ascend, OS="alpine")[0]
    assert "expected a wheel in dist/" in build(root, "vllm.whl")[0]
    foreign = "dist/vllm-0.23.0-py3-none-any.whl"
    with zipfile.ZipFile(root / foreign, "w"):
        pass
    assert "expected a wheel that this project built" in build(root, foreign)[0]
    for path in (root / "build").rglob("Dockerfile"):
        path.unlink()
    assert "expected a line FROM" in build(root, ascend)[0]
