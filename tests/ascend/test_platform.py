"""Engine configurations on the real NPUPlatform: which policy, or the refusal."""

import json
import re
from typing import Any

import pytest

from conftest import program

VARIABLE = {"VLLM_ASCEND_BALANCE_SCHEDULING": "1"}
SWITCH = {"enable_balance_scheduling": True}
CAP = {"data_parallel_balance": "cap"}
PRODUCER, CONSUMER = (
    {"kv_connector": "ExampleConnector", "kv_role": role}
    for role in ("kv_producer", "kv_consumer")
)


def case(model="moe", environment=None, **arguments: Any) -> dict[str, Any]:
    return {"model": model, "environment": environment or {}, "arguments": arguments}


def plugin(**settings: Any) -> dict[str, Any]:
    return {"additional_config": settings}


POLICY = {
    "nothing": (case(), "off"),
    "cap": (case(**CAP), "cap"),
    "align": (case(data_parallel_balance="align"), "align"),
    "adaptive": (case(data_parallel_balance="adaptive"), "adaptive"),
    "asynchronous": (case(**CAP, async_scheduling=True), "cap"),
    "synchronous": (case(**CAP, async_scheduling=False), "cap"),
    "the variable": (case(environment=VARIABLE), "cap"),
    "the switch": (case(**plugin(**SWITCH)), "cap"),
    "the switch below scheduler_config": (
        case(**plugin(scheduler_config=SWITCH)),
        "cap",
    ),
    "the variable, and a flag": (
        case(environment=VARIABLE, data_parallel_balance="adaptive"),
        "adaptive",
    ),
    "a prefill instance": (case(kv_transfer_config=PRODUCER, **CAP), "cap"),
    "a prefill instance, and the variable": (
        case(environment=VARIABLE, kv_transfer_config=PRODUCER, **CAP),
        "cap",
    ),
    "a decode instance": (case(kv_transfer_config=CONSUMER, **CAP), "cap"),
    "the switch on one rank": (case(data_parallel_size=1, **plugin(**SWITCH)), "off"),
    "the switch on a dense model": (case("dense", **plugin(**SWITCH)), "off"),
}
REFUSED = {
    "one rank": (case(data_parallel_size=1, **CAP), "data parallel rank"),
    "a dense model": (case("dense", **CAP), "mixture-of-experts|MoE"),
    "a decode instance with the recompute scheduler": (
        case(
            kv_transfer_config=CONSUMER,
            **CAP,
            **plugin(recompute_scheduler_enable=True),
        ),
        "--data-parallel-balance cap: .*recompute_scheduler_enable.*#8975",
    ),
    "a prefill instance, by the switch": (
        case(kv_transfer_config=PRODUCER, **plugin(**SWITCH)),
        "enable_balance_scheduling only supports PD-mixed mode",
    ),
}


@pytest.fixture(scope="module")
def outcomes(moe_model, dense_model) -> dict[str, dict[str, Any]]:
    """What became of each case, from one run of the program."""
    every = {**POLICY, **REFUSED}
    cases = json.dumps([tried for tried, _ in every.values()])
    printed = program("platform_cases.py", str(moe_model), str(dense_model), cases)
    return dict(zip(every, json.loads(printed.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("name", POLICY)
def test_policy(name, outcomes):
    outcome = outcomes[name]
    assert outcome["error"] is None
    assert outcome["policy"] == POLICY[name][1]
    assert outcome["platform"] == "NPUPlatform"
    assert outcome["worker"].startswith("vllm_ascend.worker.")
    assert outcome["scheduler"].startswith(("vllm.", "vllm_ascend."))
    assert outcome["copy_balances"] is False, "it would balance a second time"


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name, outcomes):
    assert re.search(REFUSED[name][1], str(outcomes[name]["error"])), outcomes[name]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("the variable", "deprecated"),
        ("the switch", "deprecated"),
        ("the switch on one rank", "is ignored"),
        ("the switch on a dense model", "is ignored"),
    ],
)
def test_legacy_switches_are_said_to_be_deprecated_or_to_do_nothing(
    name, said, outcomes
):
    assert any(said in line for line in outcomes[name]["logged"])
