"""`vllm bench dp-balance` as a user runs it."""

import os
import subprocess
import sys

import pytest
from vllm.entrypoints.cli.main import main

WORDS = ("bench", "dp-balance")


def run(folder, *arguments):
    """In a process of its own, whose terminal knows ASCII alone."""
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", *WORDS]
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture
def inside(monkeypatch, capfd):
    """In this process: status, output and errors."""
    method = os.environ.get("VLLM_WORKER_MULTIPROC_METHOD", "spawn")
    monkeypatch.setenv("VLLM_WORKER_MULTIPROC_METHOD", method)  # main sets it

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["vllm", *WORDS, *arguments])
        status = 0
        try:
            main()
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
    assert said.startswith("usage: vllm ")
    for verb, option in (("trial", "--rounds"), ("simulate", "--cost-preset")):
        for question in ("--help", "-h", "--help=all"):
            status, said, _ = inside(verb, question)
            assert status in (0, None)
            assert option in said


def test_a_terminal_may_know_ascii_alone(tmp_path):
    options = ("-dp", "2", "--num-prompts", "64", "--max-num-seqs", "4")
    done = run(tmp_path, "recommend", *options)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "\\u2192" in done.stdout
