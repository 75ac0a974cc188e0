"""The rules for patches, each broken once."""

import pytest

from balance_tools.series.apply import load_series
from balance_tools.series.lint import lint_series
from balance_tools.series.patchfile import ADDED, REMOVED
from rebase_samples import edit, sample


def lint(patches, tree, limits=None):
    return lint_series(load_series(patches), limits or {}, tree)


def only_first(patches):
    (patches / "series").write_text("gate.patch\n")
    for name in ("hold", "exchange"):
        (patches / f"{name}.patch").unlink()
    return patches / "gate.patch"


@pytest.fixture
def made(tmp_path):
    return sample(tmp_path)


def test_the_sample_is_clean(made):
    assert lint(*made, {ADDED: 10, REMOVED: 0}) == []


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("Description: Sample", "Title: Sample", "expected the field Description"),
        ("Forwarded: not-needed", "Forwarded:", "expected the field Forwarded"),
        ("Relies-On:", "Needs:", "expected the field Relies-On"),
        ("no longer needed\n", "no longer needed\nIndex: of all\nWords.\n", "as quilt"),
        ("create_gate(config)\n", "create_gate(config) \n", "ends in white space"),
        ("create_gate(config)\n", "create_gate(config\n", "not valid Python"),
        (" from vllm.q", "-from vllm.queue import Queue\n+from vllm.q", "as quilt"),
    ],
)
def test_a_broken_rule_is_one_sentence(made, old, new, problem):
    patches, tree = made
    edit(only_first(patches), old, new)
    found = lint(patches, tree)
    assert any(problem in line for line in found), found
    assert all(str(patches) in line for line in found)


def test_more_lines_than_the_limits_are_refused(made):
    found = lint(*made, {ADDED: 5, REMOVED: 0})
    assert any("adds 6 lines, at most 5" in line for line in found)


def test_stray_and_numbered_files_are_refused(made):
    patches, tree = made
    (patches / "gate.patch").rename(patches / "01-gate.patch")
    (patches / "series").write_text("01-gate.patch\n")
    found = lint(patches, tree)
    assert any("exchange.patch: not in" in line for line in found)
    assert any("01-gate.patch: expected a name" in line for line in found)
