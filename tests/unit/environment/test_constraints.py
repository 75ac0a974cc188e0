"""What the tools, the tests and the demo install is fixed, for every Python."""

import pytest
import tomlkit
from packaging.requirements import Requirement

from balance_tools.environment.reference import group_requirements
from balance_tools.paths import Paths
from pinned import CONSTRAINTS, PYTHONS, misfits, pins

PYPROJECT = Paths.find().root / "pyproject.toml"
GROUPS = tomlkit.parse(PYPROJECT.read_text(encoding="utf-8"))["dependency-groups"]


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("group", GROUPS)
def test_the_set_fits_what_pyproject_asks_for(group, python):
    wanted = [Requirement(line) for line in group_requirements(PYPROJECT, group)]
    assert wanted
    assert list(misfits(wanted, python)) == [], "run `make constraints`"


@pytest.mark.parametrize("python", PYTHONS)
def test_what_torch_brings_for_a_gpu_is_left_to_it(python):
    assert pins(python)["torch"]
    gpu = ("cuda", "nvidia", "triton")
    assert [name for name in pins(python) if name.startswith(gpu)] == []


def test_no_index_is_named():
    assert "//" not in CONSTRAINTS.read_text(encoding="utf-8")
