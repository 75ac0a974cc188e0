"""`vllm bench dp-balance` as a user runs it."""

import subprocess
import sys
from pathlib import Path


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "dp-balance"]
    return subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=240
    )


def test_error_is_one_line_and_a_status(tmp_path):
    done = run(tmp_path, "recommend", "--policy", "best")
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "--policy best: unknown" in errors[0]
    assert "Traceback" not in done.stderr
