"""The demo compares the answers of all policies."""

import json

import pytest

from balance_tools.demo.demo import compare
from balance_tools.errors import ToolError


def test_answers_are_compared(tmp_path):
    turns = tmp_path / "turns"
    turns.mkdir()
    for name in ("01-off", "02-adaptive"):
        answers = {"generated_texts": ["x", "y"], "trial": []}
        (turns / f"{name}.json").write_text(json.dumps(answers))
    assert compare(tmp_path) == "All 2 answers are equal with off and adaptive."
    other = json.dumps({"generated_texts": ["x", "z"]})
    (turns / "02-adaptive.json").write_text(other)
    with pytest.raises(ToolError, match=r"answer 1 as in 01-off\.json, 'y', found 'z'"):
        compare(tmp_path)
