"""`vllm-balance verify` finds whatever is not as it was built, and says what to do."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from balance_tools.release.sdist import NAME, write_sdist
from balance_tools.upstream.archive import extract_sdist
from conftest import HERE, ROOT, VERSION, Build
from environments import Environment, make_environment
from vllm_balance.checkout import ARCHIVE_RECORD


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


def findings(environment: Environment, *arguments: str) -> list[str]:
    """The lines of a verification that fails."""
    result = environment.run("vllm-balance", "verify", *arguments, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert all("; repair: " in line for line in lines), lines
    return lines


def test_intact(pristine: Environment) -> None:
    result = pristine.run("vllm-balance", "verify", "--checkout", str(ROOT))
    first, second = result.stdout.splitlines()
    assert first.endswith(": installed as it was built")
    assert ": built from commit " in second


def test_intact_when_byte_code_was_written_or_cleaned(tampered: Environment) -> None:
    module = tampered.packages / "vllm" / "envs.py"
    tampered.run("python", "-O", "-m", "py_compile", str(module))
    assert list((module.parent / "__pycache__").glob("envs.*.opt-1.pyc"))
    cache = tampered.packages / "vllm_balance" / "__pycache__"
    shutil.rmtree(cache)
    tampered.run("vllm-balance", "verify")


@pytest.mark.parametrize(
    "name",
    [
        "vllm/envs.py",
        "vllm/v1/core/sched/balance/policies/by_name.py",
        "vllm_ascend/libvllm_ascend_kernels.so",
        "vllm_balance/build_info.py",
    ],
)
def test_modified(tampered: Environment, name: str) -> None:
    path = tampered.packages / name
    content = path.read_bytes()
    path.unlink()
    path.write_bytes(content + b"\n")
    (line,) = findings(tampered)
    assert line.startswith(f"{path}: ")
    assert "found modified" in line
    assert f"pip install --force-reinstall --no-deps vllm-{VERSION}.a2-" in line


def test_missing(tampered: Environment) -> None:
    path = tampered.packages / "vllm" / "py.typed"
    path.unlink()
    (line,) = findings(tampered)
    assert line.startswith(f"{path}: ")
    assert "found missing" in line


@pytest.mark.parametrize(
    "name", ["vllm/extra.py", "vllm_ascend/x.so", "vllm/__pycache__/gone.cpython-1.pyc"]
)
def test_foreign(tampered: Environment, name: str) -> None:
    path = tampered.packages / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    (line,) = findings(tampered)
    assert line.startswith(f"{path}: ")
    assert line.endswith(f"rm '{path}'")


def test_many_are_counted(tampered: Environment) -> None:
    shutil.rmtree(tampered.packages / "vllm" / "entrypoints" / "cli")
    lines = findings(tampered)
    assert len(lines) == 11
    assert " more files: " in lines[-1]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """The source archive of this checkout, unpacked."""
    unpacked = tmp_path / f"{NAME}-{VERSION}"
    extract_sdist(write_sdist(ROOT, VERSION, tmp_path), unpacked)
    return unpacked


def differing(environment: Environment, archive: Path) -> list[str]:
    """The files that a verification against the archive names."""
    lines = findings(environment, "--checkout", str(archive))
    return [line.partition(": ")[0].removeprefix(f"{archive}/") for line in lines]


def test_the_archive_it_was_built_from(pristine: Environment, archive: Path) -> None:
    result = pristine.run("vllm-balance", "verify", "--checkout", str(archive))
    assert "built from commit " in result.stdout


@pytest.mark.parametrize(
    "name",
    [
        "upstream.toml",
        "vllm/v1/core/sched/balance/policies/by_name.py",
        "vllm_balance/verify.py",
    ],
)
def test_an_archive_with_another_file(
    pristine: Environment, archive: Path, name: str
) -> None:
    with (archive / name).open("a") as file:
        file.write("# another\n")
    assert differing(pristine, archive) == [name]
    (archive / name).unlink()
    assert str(archive / name) in findings(pristine, "--checkout", str(archive))[0]


def test_an_archive_of_another_commit(pristine: Environment, archive: Path) -> None:
    record = json.loads((archive / ARCHIVE_RECORD).read_text())
    record["files"]["vllm_balance/more.py"] = "0"
    (archive / ARCHIVE_RECORD).write_text(json.dumps(record | {"commit": "0" * 40}))
    first, second = findings(pristine, "--checkout", str(archive))
    assert first.startswith(f"{archive}: expected commit ")
    assert f"found {'0' * 40}; repair: git -C {archive} checkout " in first
    assert second.startswith(f"{archive}/vllm_balance/more.py: expected none")


def test_no_checkout(pristine: Environment, tmp_path: Path) -> None:
    (line,) = findings(pristine, "--checkout", str(tmp_path))
    assert "expected a file of a checkout, found none" in line


def test_not_a_wheel(tampered: Environment) -> None:
    (tampered.packages / "vllm_balance" / "build.json").unlink()
    result = tampered.run("vllm-balance", "verify", check=False)
    assert result.returncode == 1
    assert "expected the build record of a wheel" in result.stderr
