"""Every documented command is one that a shell, make or our own parsers take."""

from __future__ import annotations

import argparse
import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from vllm.benchmarks.dp_balance import cli

from balance_tools.paths import Paths

ROOT = Paths.find().root
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PROMPT = re.compile(r"^(?:\w+)?[$#] (.*)$")
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def commands(page: Path) -> Iterator[str]:
    """The commands of the blocks that show a console, continuation lines joined."""
    for block in re.findall(r"^```console\n(.*?)^```", page.read_text(), re.M | re.S):
        for line in block.replace("\\\n", " ").splitlines():
            if match := PROMPT.match(line):
                yield match[1]


FOUND = [(page.name, command) for page in PAGES for command in commands(page)]


def words(command: str) -> list[str]:
    """The words of a command, without comment and without what stands for something."""
    return shlex.split(re.sub(r"<[a-z' ]+>", "X", command), comments=True)


def test_commands_were_found() -> None:
    assert len(FOUND) > 60
    assert len({page for page, _ in FOUND}) > 10


@pytest.mark.parametrize(("page", "command"), FOUND)
def test_a_shell_can_read_it(page: str, command: str) -> None:
    text = re.sub(r"<[a-z' ]+>", "X", command)
    done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("page", "command"), [item for item in FOUND if "make " in item[1]]
)
def test_make_has_the_target(page: str, command: str) -> None:
    for part in re.split(r"&&|;|\|", command):
        if (given := words(part)) and given[0] == "make":
            targets = {word for word in given[1:] if "=" not in word}
            assert targets <= TARGETS | {"…"}, command


@pytest.mark.parametrize(
    ("page", "command"),
    [
        item
        for item in FOUND
        if re.search(r"\b(deploy|tools|docker|bench|tests)/", item[1])
    ],
)
def test_the_files_that_it_names_exist(page: str, command: str) -> None:
    for word in words(command):
        if re.match(r"(deploy|tools|docker|bench|tests)/[\w./@*-]+$", word):
            assert list(ROOT.glob(word)), f"{page}: {word}"


@pytest.mark.parametrize(
    "command", [command for _, command in FOUND if "vllm bench dp-balance " in command]
)
def test_the_simulator_takes_the_command(command: str) -> None:
    parser = argparse.ArgumentParser()
    cli.add_cli_args(parser)
    before, _, given = command.partition("vllm bench dp-balance ")
    assert parser.parse_args(words(given)), before
