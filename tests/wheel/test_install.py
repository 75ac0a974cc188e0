"""Installed by real pip: what Python sees, and that nothing stays behind."""

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from conftest import HERE, ROOT, VERSION, Build
from environments import Environment, make_environment

PLUGIN_VERSION = f"{VERSION}.a2".replace("+", ".post1+")


@pytest.fixture(scope="session")
def ascend_wheel(build: Build) -> Path:
    """The Ascend wheel for this Python on x86_64."""
    return build(HERE)


@pytest.mark.timeout(900)  # it waits for the one full install
def test_reference_wheel_with_all_its_requirements(installed: Environment) -> None:
    check = installed.pip("check")
    assert "No broken requirements found" in check.stdout
    version = installed.run("vllm", "--version").stdout.split()[-1]
    assert version == f"{VERSION}.reference"
    assert installed.python_says("import vllm; print(vllm.__version__)") == "0.23.0"


def test_reference_wheel_is_intact_and_says_what_it_is(installed: Environment) -> None:
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


def test_ascend_wheel_is_three_distributions(
    bare: Environment, ascend_wheel: Path
) -> None:
    bare.install(ascend_wheel)
    versions = bare.python_says(
        "from importlib.metadata import version as v;"
        "print(v('vllm'), v('vllm-ascend'), v('vllm_ascend'))"
    )
    assert versions == f"{VERSION}.a2 {PLUGIN_VERSION} {PLUGIN_VERSION}"
    satisfied = bare.pip("install", "--no-deps", "--no-index", "vllm-ascend>=0.23.0")
    assert "Requirement already satisfied" in satisfied.stdout
    assert "installed as it was built" in bare.run("vllm-balance", "verify").stdout


def test_uninstalling_vllm_leaves_nothing(
    bare: Environment, ascend_wheel: Path
) -> None:
    before = bare.listing()
    bare.install(ascend_wheel, compiled=True)
    assert len(bare.listing() - before) > 3000
    result = bare.pip("uninstall", "--yes", "vllm", "vllm-ascend")
    assert "Skipping vllm-ascend as it is not installed" in result.stderr
    assert bare.listing() == before


def test_uninstalling_the_plugin_leaves_vllm(
    bare: Environment, ascend_wheel: Path
) -> None:
    before = bare.listing()
    bare.install(ascend_wheel, compiled=True)
    bare.pip("uninstall", "--yes", "vllm-ascend")
    assert not list(bare.packages.glob("vllm_ascend*"))
    assert (bare.packages / "vllm" / "__init__.py").is_file()
    result = bare.run("vllm-balance", "verify", check=False)
    assert result.returncode == 1
    assert result.stderr.startswith(f"vllm-ascend {PLUGIN_VERSION}: expected")
    assert result.stderr.count("\n") == 1
    bare.pip("uninstall", "--yes", "vllm")
    assert bare.listing() == before


def test_reinstalling_repairs_and_another_target_replaces(
    bare: Environment, ascend_wheel: Path, reference_wheel: Path
) -> None:
    before = bare.listing()
    bare.install(ascend_wheel)
    (bare.packages / "vllm_ascend" / "envs.py").unlink()
    bare.pip("install", "--quiet", "--force-reinstall", "--no-deps", str(ascend_wheel))
    bare.run("vllm-balance", "verify")
    bare.install(reference_wheel)
    assert not list(bare.packages.glob("vllm_ascend*"))
    bare.run("vllm-balance", "verify")
    bare.pip("uninstall", "--yes", "vllm")
    assert bare.listing() == before


def test_uv_installs_and_uninstalls_too(ascend_wheel: Path, tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "env")
    before = environment.listing()
    uv = [sys.executable, "-m", "uv", "pip", "--quiet", "--offline"]
    python = ["--python", str(environment.python)]
    install = [*uv, "install", "--no-deps", *python, str(ascend_wheel)]
    subprocess.run(install, check=True)
    environment.run("vllm-balance", "verify")
    subprocess.run([*uv, "uninstall", *python, "vllm"], check=True)
    assert environment.listing() - {".lock"} == before  # uv's own


def test_an_editable_install_runs_from_the_checkout(
    reference_wheel: Path, tmp_path: Path
) -> None:
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
