"""The commit that took a name away is found in a clone, and its title is said."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from balance_tools.contract.check import Finding
from balance_tools.contract.history import with_commits
from balance_tools.errors import ToolError

GONE = Finding("gate.py", 3, "vllm.sched.Scheduler.skipped", "it is gone", "new: kept")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
        command = ["git", *identity, *arguments]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)

    (tmp_path / "vllm").mkdir()
    file = tmp_path / "vllm" / "sched.py"
    git("init", "-q")
    for text, title, tag in (
        ("skipped = 1\n", "Add the scheduler", "v0.1"),
        ("skipped = 2\n", "Count from two", ""),
        ("kept = 2\n", "Rename what is skipped (#17)", ""),
        ("kept = 3\n", "Count from three", "v0.2"),
    ):
        file.write_text(text)
        git("add", ".")
        git("commit", "-qm", title)
        if tag:
            git("tag", tag)
    return tmp_path


def test_the_commit_is_named(clone: Path) -> None:
    (found,) = with_commits([GONE], clone, "0.1", "0.2")
    assert found.upstream.startswith("new: kept; by ")
    assert found.upstream.endswith(" Rename what is skipped (#17)")


def test_what_no_commit_explains_stays_as_it_is(clone: Path) -> None:
    other = Finding("gate.py", 3, "call-arg", "Too many arguments", "type checker")
    assert with_commits([other], clone, "0.1", "0.2") == (other,)


def test_a_clone_without_the_tag_is_refused(clone: Path) -> None:
    with pytest.raises(ToolError, match=r"--upstream-git .*the tag v0\.3, found none"):
        with_commits([GONE], clone, "0.1", "0.3")
