"""A verification runs real pytest, and knows the baseline."""

import sys
from pathlib import Path

import pytest

from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.verify import verify
from balance_tools.verify.pytest_file import FAILED, PASSED, SKIPPED, Setup, run_file
from balance_tools.verify.upstream_tests import (
    NEED_A_GPU,
    OFF,
    ON,
    PLAIN,
    copy_tests,
    newly_failing,
    select,
)
from balance_tools.verify.verify import OURS
from rebase_samples import write_tree

SAMPLE = b"""\
import os, pytest
def test_good(): assert "here" in os.environ["WHERE"]
def test_bad(): assert False
@pytest.fixture
def broken(): raise OSError
def test_error(broken): pass
@pytest.mark.skip
def test_skipped(): pass
"""


def setup(root):
    return Setup("one, two", Path(sys.executable), root, (), {"WHERE": "here"})


def test_a_file_gives_a_result_for_each_test_and_a_log(tmp_path):
    write_tree(tmp_path, {"tests/test_a.py": SAMPLE})
    found = run_file(setup(tmp_path), "tests/test_a.py", tmp_path / "logs")
    assert found == {
        "tests/test_a.py::tests.test_a::test_good": PASSED,
        "tests/test_a.py::tests.test_a::test_bad": FAILED,
        "tests/test_a.py::tests.test_a::test_error": FAILED,
        "tests/test_a.py::tests.test_a::test_skipped": SKIPPED,
    }
    log = tmp_path / "logs/tests-test_a.one-two.log"
    assert "assert False" in log.read_text()


SLEEPS = b"import time\n\ndef test_a():\n    time.sleep(600)\n"


@pytest.mark.parametrize(
    ("text", "seconds", "said"),
    [
        (b"import os\nos.abort()\n", 120, "(did not run)"),
        (b"x = 1\n", 120, "(no tests)"),
        (SLEEPS, 1, "(no end after 1 s)"),
    ],
)
def test_a_file_without_results_is_a_failure(tmp_path, text, seconds, said):
    write_tree(tmp_path, {"test_a.py": text})
    found = run_file(setup(tmp_path), "test_a.py", tmp_path, seconds)
    assert found == {f"test_a.py::{said}": FAILED}


def test_tests_of_touched_modules_are_selected_through_helpers_too(tmp_path):
    tree = write_tree(
        tmp_path / "tree",
        {
            "pyproject.toml": b"[tool.pytest.ini_options]\n",
            "tests/v1/core/test_direct.py": b"import vllm.v1.core.sched.scheduler\n",
            "tests/v1/core/utils.py": b"from vllm.v1.core.sched.scheduler import S\n",
            "tests/v1/core/test_helped.py": b"from .utils import make\n",
            "tests/v1/core/test_other.py": b"from vllm.v1.core import block_pool\n",
            "tests/models/test_m.py": b"import vllm.v1.core.sched.scheduler\n",
            NEED_A_GPU[0]: b"import vllm.v1.core.sched.scheduler\n",
        },
    )
    found = select(tree, ["vllm/v1/core/sched/scheduler.py"])
    assert [Path(name).name for name in found] == ["test_direct.py", "test_helped.py"]
    copy_tests(tree, tmp_path / "copy")
    for name in ("tests/v1/core/utils.py", "switch_balance_on.py", "pyproject.toml"):
        assert (tmp_path / "copy" / name).is_file()


def test_only_what_passes_without_the_patches_can_newly_fail():
    plain = {"a": PASSED, "b": FAILED, "c": SKIPPED, "d": PASSED}
    off = {"a": PASSED, "b": FAILED, "c": FAILED, "d": SKIPPED, "new": FAILED}
    on = {"a": FAILED, "b": PASSED, "c": SKIPPED}
    found = newly_failing({PLAIN: plain, OFF: off, ON: on})
    assert found == [
        "a: failed (patched, on)",
        "d: skipped (patched, off)",
        "d: not run (patched, on)",
    ]
    (found,) = newly_failing({PLAIN: {"a": FAILED}, OFF: {}, ON: {}})
    assert found == "no test of upstream's passes without the patches"


@pytest.mark.parametrize(
    ("ours", "said"),
    [
        ({"a": FAILED, "c": PASSED}, r"found 1: a: failed \(our engine tests\)"),
        ({"a": SKIPPED}, "found 1: no engine test of ours passes"),
        ({"a": SKIPPED, "c": PASSED}, ""),
    ],
)
def test_a_failure_of_ours_is_named_and_that_nothing_ran(
    ours, said, tmp_path, monkeypatch
):
    results = {OURS: ours, PLAIN: {"b": PASSED}, OFF: {"b": PASSED}}
    monkeypatch.setattr(verify, "_run_all", lambda _: results)
    root = Paths(Path(__file__).resolve().parents[3])
    candidate = verify.Candidate(Paths(tmp_path), "pin", root.lock, tmp_path)
    if said:
        with pytest.raises(ToolError, match=said):
            verify.verify(candidate)
    else:
        assert "nothing fails" in verify.verify(candidate)
