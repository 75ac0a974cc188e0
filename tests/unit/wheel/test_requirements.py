"""Several requirement lists become one, or the build says which two disagree."""

from pathlib import Path

import pytest

from balance_tools.errors import ToolError
from balance_tools.wheel.requirements import (
    Wanted,
    parse_requirement,
    read_requirements,
    reconcile,
)


def wanted(one: str, other: str = "") -> list[Wanted]:
    """Lines of two upstreams, separated by semicolons-free newlines."""
    return [
        parse_requirement(line, source)
        for source, lines in (("vllm common.txt", one), ("plugin.txt", other))
        for line in lines.splitlines()
    ]


def test_specifiers_and_extras_are_joined() -> None:
    both = wanted("fastapi[standard]>=0.115", "FastAPI<0.124.0")
    assert reconcile(both, ()) == ["fastapi[standard]<0.124.0,>=0.115"]


def test_markers_stay_on_their_own_lines() -> None:
    both = wanted("setuptools>=77; python_version > '3.11'", "setuptools>=64")
    assert reconcile(both, ()) == [
        "setuptools>=64",
        'setuptools>=77; python_version > "3.11"',
    ]


def test_a_contradiction_names_both_sides() -> None:
    with pytest.raises(ToolError, match="expected one version") as error:
        reconcile(wanted("torch==2.11.0", "torch==2.10.0"), ())
    assert "'torch==2.11.0' of vllm common.txt" in str(error.value)
    assert "'torch==2.10.0' of plugin.txt" in str(error.value)


def test_a_contradiction_between_markers_counts() -> None:
    both = wanted("six>=2; python_version > '3.11'", "six<1.17")
    with pytest.raises(ToolError, match="six: expected one version"):
        reconcile(both, ())


def test_a_drop_takes_a_requirement_away() -> None:
    assert reconcile(wanted("numpy", "pandas-stubs"), ["pandas_stubs"]) == ["numpy"]


def test_a_stale_drop_is_refused() -> None:
    with pytest.raises(ToolError, match=r"'cmake'.*remove that entry"):
        reconcile(wanted("numpy"), ["cmake"])


def test_an_option_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "list.txt"
    path.write_text("-r other.txt\n")
    with pytest.raises(ToolError, match=r"list.txt: expected a requirement.*-r other"):
        read_requirements(path, "list.txt")
