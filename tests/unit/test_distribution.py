"""The choice of a wheel and the settings it is built with."""

import argparse
import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomlkit
from packaging.requirements import Requirement

from balance_tools.distribution import SETTINGS_NAME, Choice, choice_from, load_settings
from balance_tools.errors import ToolError
from balance_tools.wheel.build import add_arguments, choice_of

ROOT = Path(__file__).resolve().parents[2]


def test_each_variable_is_read_and_a_chip_belongs_to_kernels_from_source():
    choice = Choice("ascend", "cp312", "aarch64", "prebuilt")
    assert choice_from(choice.environment()) == choice
    assert choice.name == "ascend-cp312-aarch64"
    choice = Choice("ascend", "cp311", "x86_64", "source", "ascend310p1")
    assert choice_from(choice.environment()) == choice
    assert choice.name == "ascend-cp311-x86_64-ascend310p1"
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    words = ["--target", "ascend", "--soc", "ascend310p1"]
    with pytest.raises(ToolError, match="--soc: expected a chip only for"):
        choice_of(parser.parse_args(words))
    words += ["--kernels", "source", "--python", "cp311", "--arch", "x86_64"]
    assert choice_of(parser.parse_args(words)) == choice


def test_broken_settings_are_refused(tmp_path):
    path = tmp_path / SETTINGS_NAME
    for text, said in (("[dist", "expected TOML"), ("[distribution]", "its entries")):
        path.write_text(text)
        with pytest.raises(ToolError, match=said):
            load_settings(path)


def test_the_build_needs_only_its_declared_requirements():
    pyproject = tomlkit.parse((ROOT / "pyproject.toml").read_text()).unwrap()
    tools = {Requirement(x).name for x in pyproject["dependency-groups"]["tools"]}
    declared = {Requirement(x).name for x in pyproject["build-system"]["requires"]}
    code = "import sys, balance_tools.wheel.setup_arguments; print(*sys.modules)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": f"{ROOT / 'tools'}:{ROOT}"},
        capture_output=True,
        text=True,
        check=True,
    )
    loaded = set(result.stdout.split())
    assert "setuptools" in loaded
    assert loaded & {name.replace("-", "_") for name in tools - declared} == set()
