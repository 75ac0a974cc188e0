"""A suite fails, and names the tests, when its slowest take twice what they took."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import slowest
from slowest import late

KNOWN = {"a": 40.0, "b": 30.0, "c": 20.0}


@pytest.mark.parametrize(
    ("took_s", "took", "names"),
    [
        (100, KNOWN | {"a": 89, "new": 49}, ""),
        (100, KNOWN | {"a": 91, "new": 51}, "a new"),
        (300, KNOWN | {"a": 91}, ""),  # a slow machine
        (100, {name: 3 * seconds for name, seconds in KNOWN.items()}, ""),
    ],
)
def test_what_takes_twice_as_long_is_named_unless_all_of_it_does(took_s, took, names):
    lines = late(100, KNOWN, took_s, took)
    assert [line.partition(":")[0] for line in lines] == list(names.split())
    assert all("are allowed; make it faster, or write" in line for line in lines)


def test_a_suite_with_such_a_test_fails_and_names_it(tmp_path):
    table = {"x": {"suite": 100, "tests": {"test_a.py::test_a": 0.001}}}
    (tmp_path / "table.json").write_text(json.dumps(table))
    (tmp_path / "conftest.py").write_text(
        "import pathlib, slowest\n"
        "from slowest import pytest_addoption, pytest_configure\n"
        "slowest.TABLE = pathlib.Path(__file__).with_name('table.json')\n"
        "slowest.LEAST_S = 0\n"
    )
    (tmp_path / "test_a.py").write_text("def test_a(): pass\n")
    (tmp_path / "test_b.py").write_text("import time\ndef test_b(): time.sleep(0.5)\n")
    words = [sys.executable, "-m", "pytest", "-q", "--rootdir", tmp_path, tmp_path]
    failed = subprocess.run(
        [*words, "--slowest", "x"],
        env={**os.environ, "PYTHONPATH": str(Path(slowest.__file__).parent)},
        capture_output=True,
        text=True,
    )
    assert failed.returncode == 1
    assert "test_b.py::test_b: took" in failed.stdout
    assert "2 passed" in failed.stdout


def test_the_table_names_tests_that_are_there():
    for suite in json.loads(slowest.TABLE.read_text()).values():
        for name in suite["tests"]:
            file, test = name.partition("[")[0].split("::")
            assert f"def {test}(" in (slowest.TABLE.parent / file).read_text(), name
