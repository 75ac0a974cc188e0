"""`vllm bench dp-balance` as a user runs it."""

import json
import subprocess
import sys
from pathlib import Path

VERBS = ("simulate", "calibrate", "recommend")
SMALL = [
    *("--num-prompts", "40", "--data-parallel-size", "2", "--max-num-seqs", "4"),
    *("--input-len", "200", "--output-len", "uniform:5:30"),
]


def run(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "dp-balance"]
    return subprocess.run(
        [*command, *arguments], cwd=folder, capture_output=True, text=True, timeout=240
    )


def test_every_verb_has_help_and_the_siblings_are_still_there(tmp_path: Path) -> None:
    shown = run(tmp_path, "--help")
    assert shown.returncode == 0, shown.stderr
    for verb in VERBS:
        assert verb in shown.stdout


def test_simulate_saves_a_result(tmp_path: Path) -> None:
    save = ["--save-result", "--result-filename", "result.json"]
    done = run(tmp_path, "simulate", *SMALL, *save)
    assert done.returncode == 0, done.stderr
    assert "adaptive" in done.stdout
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["results"][0]["policy"] == "off"


def test_error_is_one_line_and_a_status(tmp_path: Path) -> None:
    done = run(tmp_path, "recommend", "--policy", "best")
    assert done.returncode == 2
    errors = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert "--policy best: unknown" in errors[0]
    assert "Traceback" not in done.stderr


def test_calibration_through_the_command(tmp_path: Path) -> None:
    done = run(tmp_path, "calibrate", "-dp", "2", "--server-log", "none.log")
    assert done.returncode == 2
    assert "none.log: cannot be read" in done.stderr
