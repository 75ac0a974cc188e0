"""`vllm-balance doctor -- vllm serve …`: vLLM's own parser and refusals, no model."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from vllm_balance.doctor.serve import look, sentence

PROGRAM = Path(sys.executable).with_name("vllm-balance")
CAP = ("--data-parallel-balance", "cap")


class AlwaysFirst:
    """A scheduler that does not ask the gate."""

    def schedule(self):
        """Nothing."""


def refused(*arguments):
    """The sentence by which a command line is refused."""
    with pytest.raises(Exception) as caught:  # noqa: PT011  whatever vLLM raises
        look(["serve", *arguments])
    return sentence(caught.value)


def test_the_command_says_what_balance_would_do(moe_model):
    """Through whatever wraps it, and with the status of the worst line."""
    command = [PROGRAM, "doctor", "--json", "--", "with-cann", "/opt/bin/vllm"]
    command += ["serve", moe_model, "--headless", "-dp", "4", "-dpl", "2", "-dpa"]
    command += ["10.0.0.1", "--data-parallel-start-rank", "2"]
    command += ["--data-parallel-balance", "adaptive"]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = {x["what"]: x for x in json.loads(done.stdout)["lines"]}
    assert lines["vllm serve"]["found"] == (
        f"{moe_model}, ranks 2 to 3 of 4 on this host"
    )
    assert lines["balance"]["found"] == ("adaptive: 4 ranks agree once per step")
    assert "not set, and ranks are on other" in lines["GLOO_SOCKET_IFNAME"]["found"]


def test_another_command_is_an_error():
    command = [PROGRAM, "doctor", "--", "vllm", "bench", "serve"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    expected = "expected `vllm serve …` after --, found 'vllm bench serve'"
    assert done.stderr == f"error: {expected}\n"


def test_what_is_refused_at_start_is_refused_here(moe_model, dense_model):
    moe, dense = str(moe_model), str(dense_model)
    one_rank = refused(moe, *CAP)
    assert one_rank.startswith("--data-parallel-balance cap needs at least two")
    assert "without MoE layers" in refused(dense, "-dp", "2", *CAP)
    scheduler = f"{AlwaysFirst.__module__}.{AlwaysFirst.__qualname__}"
    other = refused(moe, "-dp", "2", *CAP, "--scheduler-cls", scheduler)
    assert "the scheduler AlwaysFirst has a schedule() of its own" in other


def test_a_plan_loads_no_weights(moe_model, tmp_path):
    """A folder without any is enough."""
    for path in moe_model.iterdir():
        if path.suffix != ".safetensors":
            (tmp_path / path.name).symlink_to(path)
    plan = look(["serve", str(tmp_path), "-dp", "2", "-tp", "1", "--port", "8123"])
    assert (plan["policy"], plan["ranks"], plan["local_ranks"]) == ("off", 2, 2)
    assert (plan["npus_per_rank"], plan["port"]) == (1, 8123)
