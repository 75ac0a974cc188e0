"""The switches of vllm-ascend's balance patch mean `--data-parallel-balance cap`.

With the patched plugin itself; stand-ins only for torch_npu and CANN.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomllib

REPOSITORY = Path(__file__).parents[2]
PROGRAM = Path(__file__).with_name("legacy_switches.py")
VARIABLE = {"VLLM_ASCEND_BALANCE_SCHEDULING": "1"}
SWITCH = {"enable_balance_scheduling": True}

PRODUCER = {"kv_connector": "ExampleConnector", "kv_role": "kv_producer"}


def case(ranks: int = 2, environment: Any = None, **arguments: Any) -> dict[str, Any]:
    return {"ranks": ranks, "environment": environment or {}, "arguments": arguments}


CASES = {
    "variable": case(environment=VARIABLE),
    "additional_config": case(additional_config=SWITCH),
    "scheduler_config": case(additional_config={"scheduler_config": SWITCH}),
    "flag": case(additional_config=SWITCH, data_parallel_balance="adaptive"),
    "none": case(),
    "one rank": case(ranks=1, additional_config=SWITCH),
    "prefill node": case(data_parallel_balance="cap", kv_transfer_config=PRODUCER),
    "prefill node, switch": case(additional_config=SWITCH, kv_transfer_config=PRODUCER),
}


@pytest.fixture(scope="module")
def outcomes(
    moe_model: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    """What became of each case, from one run of the program."""
    lock = tomllib.loads((REPOSITORY / "upstream.toml").read_text())
    versions = [lock[name]["version"] for name in ("vllm", "vllm_ascend")]
    if len({tuple(version.split(".")[:2]) for version in versions}) > 1:
        pytest.skip("vllm-ascend {1} is not for vllm {0}".format(*versions))
    # The materialised plugin alone: vllm is the installed one.
    folder = tmp_path_factory.mktemp("plugin")
    assert (REPOSITORY / "vllm_ascend" / "platform.py").is_file(), "run make vendor"
    (folder / "vllm_ascend").symlink_to(REPOSITORY / "vllm_ascend")
    environment = {**os.environ, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1"}
    environment.pop("PYTHONSAFEPATH", None)
    result = subprocess.run(
        [sys.executable, PROGRAM, moe_model, json.dumps(list(CASES.values()))],
        env=environment,
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert result.returncode == 0, result.stderr[-4000:]
    listed = json.loads(result.stdout.rstrip().splitlines()[-1])
    return dict(zip(CASES, listed, strict=True))


@pytest.mark.parametrize(
    "switch", ["variable", "additional_config", "scheduler_config"]
)
def test_a_legacy_switch_means_cap(switch, outcomes):
    plugin = REPOSITORY / "vllm_ascend" / "ascend_config.py"
    if switch == "variable" and next(iter(VARIABLE)) not in plugin.read_text():
        pytest.skip("this release of the plugin has dropped the variable")
    outcome = outcomes[switch]
    assert outcome["policy"] == "cap"
    assert not outcome["copy_is_on"]
    assert any("deprecated" in line for line in outcome["logged"])


def test_a_policy_that_was_chosen_with_the_flag_wins(outcomes):
    assert outcomes["flag"]["policy"] == "adaptive"
    assert not outcomes["flag"]["copy_is_on"]


def test_without_a_switch_balance_stays_off(outcomes):
    assert outcomes["none"]["policy"] == "off"
    assert not any("balance" in line for line in outcomes["none"]["logged"])


def test_a_switch_on_one_rank_is_ignored_with_a_warning(outcomes):
    outcome = outcomes["one rank"]
    assert outcome["policy"] == "off"
    assert any(
        "is ignored" in line and "at least two data parallel ranks" in line
        for line in outcome["logged"]
    )


def test_a_prefill_node_is_refused_by_the_name_of_what_was_given(outcomes):
    error = outcomes["prefill node"]["error"]
    assert "--data-parallel-balance cap" in error
    assert "kv_role kv_producer" in error
    error = outcomes["prefill node, switch"]["error"]
    assert "enable_balance_scheduling only supports PD-mixed mode" in error
