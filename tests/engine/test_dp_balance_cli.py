"""`vllm bench dp-balance` as a user runs it."""

import os
import subprocess
import sys


def run(folder, *arguments, encoding="utf-8"):
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "dp-balance"]
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONIOENCODING": encoding},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_error_is_one_line_and_a_status(tmp_path):
    done = run(tmp_path, "recommend", "--policy", "best")
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "--policy best: unknown" in errors[0]
    assert "Traceback" not in done.stderr


def test_help_comes_first_and_a_terminal_may_know_ascii_alone(tmp_path):
    assert run(tmp_path, "--help", encoding="ascii").stdout.startswith("usage: vllm ")
    options = ("-dp", "2", "--num-prompts", "64", "--max-num-seqs", "4")
    done = run(tmp_path, "recommend", *options, encoding="ascii")
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    assert "\\u2192" in done.stdout
