"""The demo compares the answers of all policies, and shows only what is ours."""

import json

import pytest

from balance_tools.demo.demo import compare, run_trial
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


def test_what_other_programs_write_is_in_a_log(tmp_path, capfd, monkeypatch):
    program = tmp_path / "bin/vllm"
    program.parent.mkdir()
    script = "echo ours; echo leaked >&2; exit $STATUS"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    given = (program.with_name("python"), tmp_path / "gain", tmp_path, [], [])
    monkeypatch.setenv("STATUS", "0")
    run_trial(*given)
    assert capfd.readouterr() == ("ours\n", "")
    monkeypatch.setenv("STATUS", "3")
    with pytest.raises(ToolError, match=r"gain\.log: .* exit status 3: .*leaked"):
        run_trial(*given)
