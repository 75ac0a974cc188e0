import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from balance_tools.__main__ import COMMANDS, main
from balance_tools.paths import Paths


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_module(command, capsys):
    module, summary = COMMANDS[command]
    assert callable(importlib.import_module(f"balance_tools.{module}").run)
    with pytest.raises(SystemExit) as caught:
        main([command, "--help"])
    assert caught.value.code == 0
    assert summary in " ".join(capsys.readouterr().out.split())


def test_a_module_that_is_not_there_is_one_line(repo):
    hidden = repo.root / "tools" / "unidiff.py"
    hidden.parent.mkdir()
    hidden.write_text("raise ModuleNotFoundError('no unidiff', name='unidiff')\n")
    code, _, err = repo.run("demo")
    assert code == 1
    (line,) = err.splitlines()
    assert line.startswith("error: unidiff: expected this module for the tools")


def test_output_that_has_no_place_ends_a_command_in_one_line():
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "vllm_balance", "doctor"]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, env=environ, stdout=writer, stderr=subprocess.PIPE)
    os.close(writer)
    assert done.returncode == 128 + signal.SIGPIPE
    assert not re.search(b"Traceback|BrokenPipe", done.stderr)
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(command, env=environ, stdout=full, stderr=subprocess.PIPE)
    assert done.returncode in (1, 2)
    *before, line = done.stderr.decode().splitlines()
    assert line.startswith("error: output: No space left on device")
    assert not [each for each in before if each.startswith("error")]


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        ("-m vllm_balance.cli verify", 1, "build record of a wheel, found none"),
        ("-S -m vllm_balance trial --help", 2, "No module named 'tqdm'; install"),
    ],
)
def test_in_a_clone_a_command_that_needs_the_wheel_says_so(words, status, said):
    command = [sys.executable, *words.split()]
    environ = os.environ | {"PYTHONPATH": str(Paths.find().root)}
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == status
    assert said in done.stderr
    assert "Traceback" not in done.stderr


TOOL = """
import types, sys
from balance_tools import __main__ as tools
said = sys.modules["balance_tools.said"] = types.ModuleType("said")
said.run = lambda args: print("\\u2026") or 0
tools.COMMANDS["said"] = ("said", "says it")
tools.main(["said"])
"""
DOCTOR = "from vllm_balance.cli import main; main(['doctor', '--help'])"


@pytest.mark.parametrize("code", [TOOL, DOCTOR])
def test_a_terminal_that_knows_ascii_alone_ends_no_command(code):
    environ = os.environ | {"PYTHONIOENCODING": "ascii"}
    environ |= {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "\\u2026" in done.stdout
