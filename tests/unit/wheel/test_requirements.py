"""Several requirement lists become one, or the build says which two disagree."""

import pytest

from balance_tools.errors import ToolError
from balance_tools.wheel.requirements import (
    parse_requirement,
    read_requirements,
    reconcile,
)


def wanted(one, other):
    return [
        parse_requirement(one, "vllm common.txt"),
        parse_requirement(other, "plugin.txt"),
    ]


@pytest.mark.parametrize(
    ("one", "other", "drops", "joined"),
    [
        ("fastapi[standard]>=1", "FastAPI<9", (), ["fastapi[standard]<9,>=1"]),
        (  # markers stay on their own lines
            "six>=7; python_version > '3.11'",
            "six>=6",
            (),
            ["six>=6", 'six>=7; python_version > "3.11"'],
        ),
        ("numpy", "pandas-stubs", ["pandas_stubs"], ["numpy"]),
    ],
)
def test_two_lists_become_one(one, other, drops, joined):
    assert reconcile(wanted(one, other), drops) == joined


def test_a_contradiction_names_both_sides():
    with pytest.raises(ToolError, match="expected one version") as error:
        reconcile(wanted("torch==2.11.0", "torch==2.10.0"), ())
    assert "'torch==2.11.0' of vllm common.txt" in str(error.value)
    assert "'torch==2.10.0' of plugin.txt" in str(error.value)


def test_a_contradiction_between_markers_counts():
    both = wanted("six>=2; python_version > '3.11'", "six<1.17")
    with pytest.raises(ToolError, match="six: expected one version"):
        reconcile(both, ())


def test_a_stale_drop_is_refused():
    with pytest.raises(ToolError, match=r"'cmake'.*remove that entry"):
        reconcile(wanted("numpy", "numpy"), ["cmake"])


def test_an_option_is_refused(tmp_path):
    path = tmp_path / "list.txt"
    path.write_text("-r other.txt\n")
    with pytest.raises(ToolError, match=r"list.txt: expected a requirement.*-r other"):
        read_requirements(path, "list.txt")
