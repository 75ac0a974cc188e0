"""The requirements of an Ascend wheel: both upstreams pleased by one resolver run."""

import email
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from balance_tools.distribution import ARCHES, SETTINGS_NAME, Choice, load_settings
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pip_config import pip_settings
from conftest import ASCEND, ROOT
from pinned import PYTHONS, misfits
from stub_wheels import write_stub

# Not on the public index; docs/install.md says where they are. The stand-ins have
# the names, versions and requirements that matter to a resolver.
VENDOR_ONLY = ("triton-ascend", "3.2.2")
"""On the vendor's own index."""
X86_64_ONLY = (
    "torch",
    "2.10.0+cpu",
    ["filelock", "sympy>=1.13.3", "networkx>=2.5.1", "jinja2", "fsspec>=0.8.5"],
)
"""What torch-npu asks for on x86_64: a build that is on PyTorch's own index."""


@pytest.fixture(scope="session")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Machine to a folder with the packages that the public index lacks for it."""
    folders = {arch: tmp_path_factory.mktemp(arch) for arch in ARCHES}
    for folder in folders.values():
        write_stub(folder, *VENDOR_ONLY)
    name, version, requires = X86_64_ONLY
    write_stub(folders["x86_64"], name, version, requires=requires)
    return folders


def resolve(
    choice: Choice, wheel: Path, stand_ins: Path, *options: str
) -> dict[str, Version]:
    """What a resolver chooses for a wheel: package to version. Only metadata moves."""
    python = f"{choice.python[2]}.{choice.python[3:]}"
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-header"]
    command += ["--no-annotate", "--python-version", python]
    command += ["--python-platform", f"{choice.arch}-manylinux_2_34"]
    command += ["--find-links", str(stand_ins), *options, "-"]
    result = subprocess.run(
        command,
        input=f"vllm @ {wheel.as_uri()}\n",
        env=os.environ | index_variables(),
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    pins = (line.partition("==") for line in result.stdout.splitlines())
    return {canonicalize_name(name): Version(pin) for name, sep, pin in pins if sep}


def index_variables() -> dict[str, str]:
    """The index that pip is configured to use, as uv wants to be told."""
    settings = pip_settings()
    found = {source.setting: source.location for source in settings.sources}
    variables = {"UV_DEFAULT_INDEX": found.get("index-url")}
    variables["SSL_CERT_FILE"] = settings.options.get("cert")
    return {name: value for name, value in variables.items() if value}


@pytest.mark.slow  # asks the index
@pytest.mark.parametrize("choice", ASCEND, ids=lambda choice: choice.name)
def test_one_set_pleases_both_upstreams(choice, build, stand_ins, paths):
    chosen = resolve(choice, build(choice), stand_ins[choice.arch])
    assert len(chosen) > 150
    drops = load_settings(paths.root / SETTINGS_NAME).targets["ascend"].drops
    environment = {
        "python_version": f"{choice.python[2]}.{choice.python[3:]}",
        "platform_machine": choice.arch,
    }
    lock = load_lock(paths.lock)
    for artifact, name in (
        (lock.vllm, "requirements/common.txt"),
        (lock.vllm_ascend, "requirements.txt"),
    ):
        folder = paths.pristine / f"{artifact.project}-{artifact.version}"
        lines = (folder / name).read_text().splitlines()
        wanted = [Requirement(t) for line in lines if (t := line.split("#")[0].strip())]
        assert len(wanted) > 30
        for requirement in wanted:
            package = canonicalize_name(requirement.name)
            marker = requirement.marker
            if package in drops or (marker and not marker.evaluate(environment)):
                continue
            assert requirement.specifier.contains(chosen[package]), requirement


@pytest.mark.slow  # asks the index
@pytest.mark.parametrize(
    "choice", [c for c in ASCEND if c.python == "cp312"], ids=lambda choice: choice.name
)
def test_the_constraints_of_the_image_name_every_version(choice, build, stand_ins):
    """Of the Python in the base images, with what the image has beside the wheel."""
    constraints = ROOT / "docker" / "constraints-ascend.txt"
    beside = ROOT / "docker" / "requirements-ascend.txt"
    pinned = {
        canonicalize_name(name): Version(version)
        for line in constraints.read_text().splitlines()
        for name, sep, version in [line.partition("==")]
        if sep and not line.startswith("#")
    }
    options = ["--constraint", str(constraints), str(beside)]
    chosen = resolve(choice, build(choice), stand_ins[choice.arch], *options)
    assert len(chosen) > 150
    assert {
        f"{name}=={version}"
        for name, version in chosen.items()
        if pinned.get(name) not in (version, Version(version.public))
    } == set()


def test_reference_wheel_asks_for_what_upstream_asks_and_torch(reference_wheel, paths):
    with zipfile.ZipFile(reference_wheel) as archive:
        names = [n for n in archive.namelist() if n.count("/") == 1 and "METADATA" in n]
        metadata = email.message_from_bytes(archive.read(names[0]))
    ours = {
        canonicalize_name(requirement.name): requirement
        for requirement in map(Requirement, metadata.get_all("Requires-Dist", []))
        if "extra ==" not in str(requirement.marker)
    }
    for python in PYTHONS:
        assert list(misfits(ours.values(), python)) == [], "make constraints"
    assert str(ours.pop("torch").specifier) == "==2.13.0"
    common = paths.pristine / "vllm-0.23.0" / "requirements" / "common.txt"
    texts = (line.split("#")[0].strip() for line in common.read_text().splitlines())
    upstream = {
        canonicalize_name(requirement.name): requirement
        for requirement in map(Requirement, filter(None, texts))
    }
    assert ours.keys() == upstream.keys()
    for package, requirement in upstream.items():
        assert ours[package].specifier == requirement.specifier
        assert ours[package].extras == requirement.extras
        assert str(ours[package].marker) == str(requirement.marker)
    assert "audio" in metadata.get_all("Provides-Extra", [])
