"""`vllm-balance verify` finds whatever is not as it was built, and says what to do."""

import os
import shutil
from collections.abc import Iterator

import pytest

from conftest import HERE, VERSION, Build
from environments import Environment, make_environment


@pytest.fixture(scope="module")
def pristine(build: Build, tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """An environment with the Ascend wheel, to be left as it is."""
    environment = make_environment(tmp_path_factory.mktemp("verify") / "env")
    environment.install(build(HERE), compiled=True)
    return environment


@pytest.fixture
def tampered(pristine: Environment) -> Iterator[Environment]:
    """The same, to be spoilt: the packages are put back afterwards.

    The copies are links, so a test that changes a file must replace it.
    """
    packages = pristine.packages
    saved = pristine.folder.parent / "saved"
    shutil.copytree(packages, saved, symlinks=True, copy_function=os.link)
    yield pristine
    shutil.rmtree(packages)
    saved.rename(packages)


def findings(environment: Environment) -> list[str]:
    """The lines of a verification that fails."""
    result = environment.run("vllm-balance", "verify", check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert all("; repair: " in line for line in lines), lines
    return lines


def test_intact_when_byte_code_was_written_or_cleaned(tampered):
    module = tampered.packages / "vllm" / "envs.py"
    tampered.run("python", "-O", "-m", "py_compile", str(module))
    assert list((module.parent / "__pycache__").glob("envs.*.opt-1.pyc"))
    cache = tampered.packages / "vllm_balance" / "__pycache__"
    shutil.rmtree(cache)
    tampered.run("vllm-balance", "verify")


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("vllm/envs.py", "modified"),
        ("vllm_balance/build_info.py", "modified"),
        ("vllm/py.typed", "missing"),
    ],
)
def test_modified_or_missing(tampered, name, found):
    path = tampered.packages / name
    content = path.read_bytes()
    path.unlink()
    if found == "modified":
        path.write_bytes(content + b"\n")
    (line,) = findings(tampered)
    assert line.startswith(f"{path}: ")
    assert f"found {found}" in line
    assert f"pip install --force-reinstall --no-deps vllm-{VERSION}.a2-" in line


@pytest.mark.parametrize(
    "name", ["vllm/extra.py", "vllm_ascend/x.so", "vllm/__pycache__/gone.cpython-1.pyc"]
)
def test_foreign(tampered, name):
    path = tampered.packages / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    (line,) = findings(tampered)
    assert line.startswith(f"{path}: ")
    assert line.endswith(f"rm '{path}'")


def test_not_a_wheel(tampered):
    (tampered.packages / "vllm_balance" / "build.json").unlink()
    result = tampered.run("vllm-balance", "verify", check=False)
    assert result.returncode == 1
    assert "expected the build record of a wheel" in result.stderr
