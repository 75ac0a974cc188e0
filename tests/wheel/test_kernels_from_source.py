"""Kernels from source: what our build asks of upstream's, and what it refuses.

The toolchain is a stand-in that records. Nothing here says that the kernels compile.
"""

import json
import os
import platform
import shutil
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from balance_tools.distribution import Choice
from balance_tools.errors import ToolError
from balance_tools.kernels.from_source import COPIED, build_kernels, run_superbuild
from balance_tools.kernels.stage import build_info_text, device_of
from balance_tools.kernels.toolchain import find_toolchain
from balance_tools.paths import Paths
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine
from balance_tools.vendoring.vendor import vendor
from balance_tools.wheel.build import THIS_PYTHON
from conftest import ROOT, VERSION
from stand_in import StandIn, make_stand_in
from test_reproducible import build_in, copy_sources

PRISTINE = ensure_pristine(load_lock(Paths(ROOT).lock).vllm_ascend, Paths(ROOT))
A2, A3, P310, A5 = "ascend910b1", "ascend910_9391", "ascend310p1", "ascend950dt_9582"
SOURCE = Choice("ascend", THIS_PYTHON, platform.machine(), "source", A3)
OPTIONS = {
    "C_COMPILER": "gcc",
    "CXX_COMPILER": "g++",
    "CMAKE_BUILD_TYPE": "Debug",
    "FETCHCONTENT_BASE_DIR": "/nowhere/fetched",
    "MAX_JOBS": "3",
    "VERBOSE": "1",
    "VLLM_ASCEND_ENABLE_BATCH_MEMCPY": "0",
}
SHELLS_OWN = {"_", "OLDPWD", "PWD", "SHLVL"}
SETUPTOOLS_OWN = {"PLAT"}
EXPLAINED = {"GIT_CONFIG_GLOBAL", "VLLM_BATCH_INVARIANT"}  # at build_environment
NO_CACHE = shutil.ignore_patterns("__pycache__")
NOT_COMPARED = SHELLS_OWN | SETUPTOOLS_OWN | EXPLAINED


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    """A complete toolchain, in the environment of the test and nothing else in it."""
    toolchain = make_stand_in(tmp_path / "toolchain")
    # By the monkeypatch of the test: undone in another order than the test's changes,
    # variables would stay, and pip would take the stand-in's packages for installed.
    for name in os.environ:
        monkeypatch.delenv(name)
    for name, value in toolchain.environment().items():
        monkeypatch.setenv(name, value)
    return toolchain


@pytest.fixture(scope="module")
def upstream_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("upstream") / "tree"
    shutil.copytree(PRISTINE, folder, symlinks=True, ignore=NO_CACHE)
    return folder


@pytest.fixture(scope="module")
def our_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ours") / "source"
    folder.mkdir()
    for name in COPIED:
        if (PRISTINE / name).is_dir():
            shutil.copytree(PRISTINE / name, folder / name, ignore=NO_CACHE)
        else:
            shutil.copy2(PRISTINE / name, folder / name)
    return folder


def normalised(call: dict[str, Any], source: Path, build: Path) -> dict[str, Any]:
    """A call with the folders of either side named alike, and options in any order."""

    def same(text: str) -> str:
        return text.replace(str(build), "<build>").replace(str(source), "<source>")

    argv = [same(argument) for argument in call["argv"]]
    if argv[1] == "cmake":
        argv = argv[2:]  # upstream configures twice, the second time with this
    if not argv[0].startswith(("--build", "--install")):
        argv = sorted(argv)
    env = {k: same(v) for k, v in call["env"].items() if k not in NOT_COMPARED}
    return {"argv": argv, "cwd": same(call["cwd"]), "env": env}


def distinct(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The calls in order, one that is repeated at once left out."""
    return [call for i, call in enumerate(calls) if i == 0 or call != calls[i - 1]]


def asked_by_upstream(
    stand_in: StandIn, tree: Path, soc: str
) -> tuple[list[dict[str, Any]], str]:
    """What the plugin's setup.py asks of cmake, and the _build_info.py it writes."""
    for left in ("build", "csrc/build", "vllm_ascend/_cann_ops_custom"):
        shutil.rmtree(tree / left, ignore_errors=True)
    subprocess.run(
        ["python3", str(tree / "setup.py"), "build"],
        cwd=tree,
        env={**os.environ, "SOC_VERSION": soc},
        check=True,
        capture_output=True,
    )
    (build,) = (tree / "build").glob("temp.*")
    calls = [normalised(call, tree, build) for call in stand_in.calls()]
    return distinct(calls), (tree / "vllm_ascend" / "_build_info.py").read_text()


def asked_by_us(stand_in: StandIn, tree: Path, soc: str) -> list[dict[str, Any]]:
    for left in (tree.parent / "superbuild", tree / "csrc/build", tree / "vllm_ascend"):
        shutil.rmtree(left, ignore_errors=True)
    toolchain = find_toolchain(replace(SOURCE, soc=soc))
    run_superbuild(ROOT, tree.parent, toolchain, soc)
    build = tree.parent / "superbuild" / "extension"
    return [normalised(call, tree, build) for call in stand_in.calls()]


@pytest.mark.parametrize(
    ("soc", "options"),
    [(A3, {}), (P310, {}), (A5, {}), (A2, OPTIONS)],  # others differ by name
)
def test_asks_what_upstreams_setup_asks(
    soc, options, stand_in, upstream_tree, our_tree, monkeypatch
):
    """By every variable that upstream reads."""
    for name, value in options.items():
        monkeypatch.setenv(name, value)
    theirs, build_info = asked_by_upstream(stand_in, upstream_tree, soc)
    assert build_info == build_info_text(device_of(soc, PRISTINE))
    ours = asked_by_us(stand_in, our_tree, soc)
    # The operators are configured and built, the extension too, and then installed.
    assert len(theirs) == 5
    assert f"-DSOC_VERSION={soc}" in theirs[2]["argv"]
    assert any(word.startswith("-DASCEND_OP_NAME=") for word in theirs[0]["argv"])
    assert ours == theirs
    asked = {"-DCMAKE_CXX_COMPILER=g++", "-DFETCHCONTENT_BASE_DIR=/nowhere/fetched"}
    assert bool(options) == (asked <= set(ours[2]["argv"]))
    assert bool(options) == ("-j=3" in ours[3]["argv"])


@pytest.mark.parametrize(
    ("choice", "missing", "says"),
    [
        (replace(SOURCE, arch="riscv64"), "", "ARCH: expected this machine's"),
        (replace(SOURCE, python="cp39"), "", f"expected {THIS_PYTHON} of"),
        (SOURCE, "ASCEND_HOME_PATH", "ASCEND_HOME_PATH: expected CANN"),
        (SOURCE, "PYTHONPATH", r"python3: expected torch.*ModuleNotFound"),
    ],
)
def test_what_would_not_be_the_wheel_of_its_name_is_refused(
    choice, missing, says, stand_in, monkeypatch
):
    monkeypatch.delenv(missing, raising=False)
    with pytest.raises(ToolError, match=says):
        find_toolchain(choice)


def test_a_short_name_is_refused_for_upstream_builds_no_operators(
    stand_in, upstream_tree
):
    theirs, _ = asked_by_upstream(stand_in, upstream_tree, "910b")
    assert not [call for call in theirs if "package" in call["argv"]]
    for soc in ("910b", ""):
        with pytest.raises(ToolError, match=f"SOC: expected one of .* found '{soc}'"):
            device_of(soc, PRISTINE)


@pytest.fixture
def repository(tmp_path: Path) -> Paths:
    root = tmp_path / "repository"
    root.mkdir()
    for name in ("CMakeLists.txt", "upstream.toml"):
        (root / name).symlink_to(ROOT / name)
    (root / "build").mkdir()
    (root / "build" / "pristine").symlink_to(ROOT / "build" / "pristine")
    return Paths(root)


def test_a_failed_build_is_one_sentence_and_goes_on(repository, stand_in, monkeypatch):
    lock = load_lock(repository.lock)
    monkeypatch.setenv("STAND_IN_FAILS", "--target=vllm_ascend_C")
    said = (
        r"build\.log: expected the kernels to compile for ascend910_9391.*told to fail"
    )
    with pytest.raises(ToolError, match=f"(?s){said}"):
        build_kernels(repository, lock, SOURCE)
    assert not list(repository.build.glob("kernels/ascend*"))
    first = stand_in.calls()
    monkeypatch.delenv("STAND_IN_FAILS")
    build_kernels(repository, lock, SOURCE)
    second = stand_in.calls()
    assert len(first) == 4
    # The operators, which take longest, are not built again.
    assert [call["argv"][0] for call in second] == ["--build", "--install"]
    build_kernels(repository, lock, SOURCE)
    assert stand_in.calls() == []


@pytest.fixture
def vendored(paths: Paths) -> None:
    """The trees, up to date; before the stand-in takes the environment away."""
    vendor(paths, load_lock(paths.lock), ("vllm", "vllm_ascend"))


def test_a_wheel_says_which_chip_it_is_for(vendored, stand_in, tmp_path):
    root = copy_sources(tmp_path / "copy", linked=("vllm", "vllm_ascend"))
    (root / "build" / "kernels").unlink(missing_ok=True)
    build_kernels(Paths(root), load_lock(Paths(root).lock), SOURCE)
    wheel = build_in(root, SOURCE, umask=0o022, PYTHONPATH="")
    machine = platform.machine()
    version = f"{VERSION}.ascend910.9391"
    tag = f"{THIS_PYTHON}-{THIS_PYTHON}-linux_{machine}"
    assert wheel.name == f"vllm-{version}-{tag}.whl"
    archive = zipfile.ZipFile(wheel)
    generated = archive.read("vllm_ascend/_build_info.py").decode()
    assert generated == "# Auto-generated file\n__device_type__ = 'A3'\n"
    compiled = {name for name in archive.namelist() if name.endswith(".so")}
    assert compiled == {
        f"vllm_ascend/vllm_ascend_C.cpython-{THIS_PYTHON[2:]}-{machine}-linux-gnu.so",
        "vllm_ascend/libvllm_ascend_kernels.so",
        "vllm_ascend/_cann_ops_custom/vendors/custom_transformer/op_api/lib/"
        "libcust_opapi.so",
    }
    record = json.loads(archive.read("vllm_balance/build.json"))
    assert record["distributions"]["vllm_ascend"].endswith(".ascend910.9391")
    assert (record["device"], record["soc"]) == ("A3", "ascend910_9391")
    assert (record["kernels"], record["kernel_wheel"]) == ("source", None)
    assert record["toolchain"].startswith("CANN 9.1.0, torch 2.10.0, torch-npu 2.10.0")
