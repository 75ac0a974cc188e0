"""Runs vllm_ascend's own configuration step with legacy switches; prints the outcomes.

A program of its own, because it puts stand-ins for torch_npu and CANN into the process.
Arguments: the model, and a JSON list of cases: `ranks`, `environment` and engine
`arguments`. Prints a JSON list of outcomes: the policy that is set in the end, whether
the plugin's copy is on, the error if any, and what was logged.
"""

import importlib.util
import json
import logging
import os
import sys
from unittest.mock import MagicMock

STAND_INS = (
    "torch_npu",
    "torch_npu._C",
    "torch_npu._C._distributed_c10d",
    "torch_npu._inductor",
    "acl",
    "acl.rt",
    "triton.runtime",
    "vllm_ascend._build_info",
)


def stand_in(name: str) -> MagicMock:
    module = MagicMock(name=name)
    module.__spec__ = importlib.util.spec_from_loader(name, None)
    module.__path__ = []
    module.__name__ = name
    sys.modules[name] = module
    return module


def main(model: str, cases: str) -> None:
    for name in STAND_INS:
        stand_in(name)
    sys.modules["vllm_ascend._build_info"].__device_type__ = "A2"

    import torch

    torch.npu = MagicMock()
    torch.version.cann = None
    print("\n" + json.dumps([outcome(model, **case) for case in json.loads(cases)]))


def outcome(
    model: str, ranks: int, environment: dict[str, str], arguments: dict[str, object]
) -> dict[str, object]:
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.core.sched.balance.validation import check_balance_scheduler
    from vllm_ascend.ascend_config import clear_ascend_config
    from vllm_ascend.patch.platform import patch_balance_schedule
    from vllm_ascend.platform import NPUPlatform

    clear_ascend_config()
    logged: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger("vllm").addHandler(handler)
    os.environ.update(environment)
    config = EngineArgs(
        model=model,
        data_parallel_size=ranks,
        skip_tokenizer_init=True,
        enforce_eager=True,
        max_model_len=256,
        **arguments,
    ).create_engine_config()
    # The plugin does nothing for another device, and this machine's is the CPU.
    config.device_config.device_type = "npu"
    error = None
    try:
        NPUPlatform.check_and_update_config(config)
    except ValueError as refusal:
        error = str(refusal)
    for name in environment:
        del os.environ[name]
    logging.getLogger("vllm").removeHandler(handler)

    # The class that the plugin puts in the place of vLLM's Scheduler.
    scheduler = object.__new__(patch_balance_schedule.BalanceScheduler)
    scheduler.balance_gate = object()
    check_balance_scheduler(scheduler, config)
    return {
        "policy": config.parallel_config.data_parallel_balance,
        "copy_is_on": patch_balance_schedule._balance_scheduling_enabled(config),
        "error": error,
        "logged": logged,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
