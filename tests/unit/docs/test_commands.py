"""Every documented command is one that a shell, make or our own parsers take."""

import argparse
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from vllm.benchmarks.dp_balance import cli
from vllm.benchmarks.dp_balance.trial import command as command_of_trial

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
PROMPT = re.compile(r"^(?:\w+)?[$#] (.*)$", re.M)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))
SIMULATOR = "vllm bench dp-balance "


def commands(page):
    """The commands of the blocks that show a console, continuation lines joined."""
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.M | re.S)
    text = "\n".join(blocks).replace("\\\n", " ")
    return [re.sub(r"<[a-z' ]+>", "X", command) for command in PROMPT.findall(text)]


FOUND = {page: found for page in PAGES if (found := commands(page))}
each_page = pytest.mark.parametrize("page", FOUND, ids=lambda page: page.name)


def test_commands_were_found():
    assert len(FOUND) > 7
    assert sum(map(len, FOUND.values())) > 60


@each_page
def test_a_shell_make_and_the_disk_know_it(page):
    text = "\n".join(FOUND[page])
    done = subprocess.run(["bash", "-n", "-c", text], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for command in FOUND[page]:
        words = shlex.split(command, comments=True)
        if words[0] == "make":
            targets = {word for word in words[1:] if "=" not in word}
            assert targets <= TARGETS, command
        for word in words:
            if re.match(r"(deploy|tools|docker|bench|tests)/[\w./@*-]+$", word):
                assert list(ROOT.glob(word)), f"{page.name}: {word}"


@pytest.mark.parametrize(
    "command", [c for found in FOUND.values() for c in found if SIMULATOR in c]
)
def test_the_simulator_takes_the_command(command):
    parser = argparse.ArgumentParser()
    cli.add_cli_args(parser)
    given = shlex.split(command.partition(SIMULATOR)[2], comments=True)
    if given[0] == "trial":
        trial = command_of_trial.parse(given[1:])
        assert trial.serve or trial.args.deployment
        assert "--num-prompts" in trial.load
    else:
        assert parser.parse_args(given)
