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
def test_the_set_fits_pyproject_and_leaves_to_torch_what_it_brings(python):
    lines = [line for name in GROUPS for line in group_requirements(PYPROJECT, name)]
    assert len(lines) > 30
    assert list(misfits(map(Requirement, lines), python)) == [], "make constraints"
    gpu = ("cuda", "nvidia", "triton")
    assert [name for name in pins(python) if name.startswith(gpu)] == []


def test_no_index_is_named():
    assert "//" not in CONSTRAINTS.read_text(encoding="utf-8")
