"""Installed by real pip: what Python sees, and that nothing stays behind."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from conftest import HERE, ROOT, VERSION, Build
from environments import Environment, make_environment


@pytest.fixture(scope="session")
def ascend_wheel(build: Build) -> Path:
    return build(HERE)


def uv_check(environment: Environment) -> subprocess.CompletedProcess[str]:
    """What uv says of all dist-infos, also of those that the wheel carries."""
    command = [sys.executable, "-m", "uv", "pip", "check", "--offline", "--python"]
    command.append(str(environment.python))
    return subprocess.run(command, capture_output=True, text=True)


@pytest.mark.timeout(900)  # it waits for the one full install
def test_reference_wheel_with_all_its_requirements(installed):
    installed.pip("check")
    done = uv_check(installed)
    assert done.returncode == 0, done.stderr
    version = installed.run("vllm", "--version").stdout.split()[-1]
    assert version == f"{VERSION}.reference"
    assert installed.python_says("import vllm; print(vllm.__version__)") == "0.23.0"


def test_reference_wheel_is_intact_and_says_what_it_is(installed):
    assert "installed as it was built" in installed.run("vllm-balance", "verify").stdout
    info = json.loads(installed.run("vllm-balance", "info", "--json").stdout)
    assert info["distributions"] == {
        "vllm": f"{VERSION}.reference",
        "vllm-balance": f"{VERSION}.reference",
    }
    assert info["target"] == "reference"
    text = installed.run("vllm-balance", "info").stdout
    assert info["lock_sha256"] in text
    assert info["series_sha256"]["vllm"] in text
    said = info["advisories"]["GHSA-8pw2-6jv3-mj5j"]
    assert f"{said['severity']}; {said['detail']}" in text
    assert f"advisories until {info['advisories_as_of']}: " in " ".join(text.split())


def assert_whole_without_names(environment: Environment) -> None:
    """All code is found; `verify` names what is not there."""
    found = environment.python_says(
        "from importlib.metadata import entry_points as e;"
        "print(*sorted(p.name for p in e(group='vllm.platform_plugins')))"
    )
    assert found == "ascend vllm_balance"
    result = environment.run("vllm-balance", "verify", check=False)
    assert result.returncode == 1
    lines = result.stderr.splitlines()
    assert [line.partition(" ")[0] for line in lines] == ["vllm-ascend", "vllm-balance"]
    assert all("--force-reinstall --no-deps" in line for line in lines)


def test_another_target_replaces_reinstalling_repairs_and_uninstalling_leaves_nothing(
    bare, ascend_wheel, reference_wheel
):
    before = bare.listing()
    bare.install(reference_wheel)
    bare.install(ascend_wheel)
    assert not (bare.packages / "vllm_balance/reference").exists()
    (bare.packages / "vllm_ascend" / "envs.py").unlink()
    bare.install("--force-reinstall", ascend_wheel, compiled=True)
    bare.run("vllm-balance", "verify")
    assert len(bare.listing() - before) > 3000
    result = bare.pip("uninstall", "--yes", "vllm", "vllm-ascend")
    assert "Skipping vllm-ascend as it is not installed" in result.stderr
    assert bare.listing() == before


def test_uv_installs_syncs_upgrades_and_uninstalls_too(
    ascend_wheel, reference_wheel, tmp_path
):
    environment = make_environment(tmp_path / "env")
    before = environment.listing()
    lock = tmp_path / "lock.txt"

    def uv(verb: str, *arguments: object) -> str:
        command = [sys.executable, "-m", "uv", "pip", verb, "--offline"]
        command += ["--python", str(environment.python), *map(str, arguments)]
        return subprocess.run(
            command, check=True, capture_output=True, text=True
        ).stdout

    lock.write_text(f"vllm @ {ascend_wheel.as_uri()}\n")
    uv("sync", lock)
    environment.run("vllm-balance", "verify")
    found = uv_check(environment).stderr  # nothing that it requires is there
    assert "vllm" in found
    assert "broken" not in found
    uv("sync", lock)
    assert_whole_without_names(environment)
    uv("install", "--reinstall", "--no-deps", ascend_wheel)
    environment.run("vllm-balance", "verify")
    # Back from what `freeze` says without the other names, to another wheel.
    frozen = uv("freeze", "--exclude", "vllm-ascend", "--exclude", "vllm-balance")
    ours = [line for line in frozen.splitlines() if line.startswith("vllm")]
    assert [line.partition(" @ ")[0] for line in ours] == ["vllm"]
    lock.write_text(f"vllm @ {reference_wheel.as_uri()}\n")
    uv("sync", lock)
    assert not list(environment.packages.glob("vllm_ascend*"))
    uv("uninstall", "vllm")
    assert environment.listing() - before == {".lock"}  # uv's own


def test_an_editable_install_runs_from_the_checkout(reference_wheel, tmp_path):
    assert reference_wheel.is_file()  # the trees are up to date
    environment = make_environment(tmp_path / "env")
    # What builds it is here already; pip would fetch it into an environment of its own.
    first = f"import sys; sys.path.insert(0, {sysconfig.get_path('purelib')!r})\n"
    (environment.packages / "tools.pth").write_text(first)
    options = ("--quiet", "--no-deps", "--no-build-isolation")
    environment.pip("install", *options, "--editable", str(ROOT))
    origin = environment.python_says(
        "import importlib.util; print(importlib.util.find_spec('vllm').origin)"
    )
    assert Path(origin) == ROOT / "vllm" / "__init__.py"
    result = environment.run("vllm-balance", "verify", check=False)
    assert result.returncode == 1
    assert "an editable install" in result.stderr
