"""`vllm-balance` as a user runs it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_balance.cli import main


def run(folder, *arguments):
    """In a process of its own, whose terminal knows ASCII alone."""
    return subprocess.run(
        [Path(sys.executable).with_name("vllm-balance"), *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture
def inside(capfd):
    """In this process: status, output and errors."""

    def run(*arguments):
        try:
            status = main(arguments)
        except SystemExit as ended:
            status = ended.code
        return status, *capfd.readouterr()

    return run


def test_error_is_one_line_and_a_status(inside):
    status, _, said = inside("recommend", "--policy", "best")
    assert status == 2
    errors = [line for line in said.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "--policy best: invalid choice" in errors[0]
    assert "Traceback" not in said


def test_help_names_the_options_of_each_verb(inside):
    status, said, _ = inside("--help")
    assert status in (0, None)
    assert said.startswith("usage: vllm-balance ")
    for verb, option in (("trial", "--minutes"), ("simulate", "--cost-preset")):
        for question in ("--help", "-h"):
            status, said, _ = inside(verb, question)
            assert status in (0, None)
            assert option in said


def test_a_terminal_may_know_ascii_alone(tmp_path):
    options = ("-dp", "2", "--num-prompts", "64", "--max-num-seqs", "4")
    done = run(tmp_path, "recommend", *options)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "\\u2192" in done.stdout
