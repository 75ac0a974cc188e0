"""The demo compares the answers of all policies, and says what was measured."""

import json
import os
import subprocess
import time

import pytest

from balance_tools.demo import ranks
from balance_tools.demo.demo import compare, what_is_hidden
from balance_tools.errors import ToolError

LOAD = ranks.drawn(80, 16, 400, 48, 0.8)


def test_equal_requests_have_equal_answers(tmp_path):
    path = tmp_path / "answers.json"
    path.write_text(json.dumps([[0, 9, 9, "a"], [1, 9, 9, "b"], [0, 9, 9, "a"]]))
    assert compare(tmp_path) == (
        "1 requests were sent again, and had the same answers as before."
    )
    path.write_text(json.dumps([[0, 9, 9, "a"], [1, 9, 9, "b"], [0, 9, 9, "c"]]))
    with pytest.raises(ToolError, match=r"one answer to each request, .* \[0\]"):
        compare(tmp_path)


@pytest.fixture
def python(tmp_path):
    """Of an environment whose `vllm-balance` writes what it was given, and STATUS."""
    program = tmp_path / "bin/vllm-balance"
    program.parent.mkdir()
    script = 'echo "$@" >> words; echo "$VLLM_CPU_OMP_THREADS_BIND" > binding; '
    script += "echo ours; echo leaked >&2; exit $STATUS"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return program.with_name("python")


def test_ranks_stay_on_cores_and_what_other_programs_write_is_in_a_log(
    tmp_path, capfd, monkeypatch, python
):
    rest = ("off", "adaptive"), 3
    cores = sorted(os.sched_getaffinity(0))
    every = "|".join(map(str, cores))
    monkeypatch.setenv("STATUS", "0")
    for count, said in ((len(cores), every), (len(cores) + 1, "nobind")):
        given = python, tmp_path / "gain", tmp_path, LOAD, ranks.Served(count)
        ranks.run_trial(*given, *rest)
        assert (tmp_path / "binding").read_text() == f"{said}\n"
        assert capfd.readouterr() == ("ours\n", "")
    monkeypatch.setenv("STATUS", "3")
    with pytest.raises(ToolError, match=r"gain\.log: .* exit status 3: .*leaked"):
        ranks.run_trial(*given, *rest)


def test_a_trial_ends_with_who_runs_it(tmp_path, monkeypatch, python):
    """It is told so, for it has a server to stop."""
    program, begun = python.with_name("vllm-balance"), tmp_path / "begun"
    script = "trap 'touch ended; exit' TERM; touch begun; while :; do sleep 0.1; done"
    program.write_text(f"#!/bin/sh\n{script}\n")
    wait = subprocess.Popen.wait

    def interrupted(process, *given):
        while not begun.exists():
            time.sleep(0.01)
        monkeypatch.setattr(subprocess.Popen, "wait", wait)
        raise SystemExit(143)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    rest = ranks.Served(2), ("off", "adaptive"), 3
    with pytest.raises(SystemExit):
        ranks.run_trial(python, tmp_path / "gain", tmp_path, LOAD, *rest)
    assert (tmp_path / "ended").exists()


def test_a_rank_for_each_core_within_limits(monkeypatch):
    for cores, expected in ((1, 2), (2, 2), (3, 3), (4, 4), (64, 4)):
        monkeypatch.setattr(ranks, "usable_cores", lambda cores=cores: cores)
        assert ranks.rank_count() == expected


def test_a_busy_machine_and_one_core_are_said_to_hide_something():
    assert what_is_hidden(2, 0.1) == ""
    assert "one core for two ranks" in what_is_hidden(1, 0.1)
    assert "others used the cores before it began (3.2)" in what_is_hidden(4, 3.2)
