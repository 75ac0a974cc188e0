"""Makes engine configurations on the real platform; prints the outcomes as JSON.

Arguments: a model, a dense model, and a JSON list of cases: `model`, `environment`,
`arguments`, all optional. An outcome has the policy, the scheduler class and where it
comes from, whether the plugin's own copy balances, what was logged, or the error.
"""

import json
import logging
import os
import sys


def main(moe: str, dense: str, cases: str) -> None:
    models = {"moe": moe, "dense": dense}
    found = [outcome(models, **case) for case in json.loads(cases)]
    sys.stdout.write("\n" + json.dumps(found) + "\n")


def outcome(models, model="moe", environment=None, arguments=None):
    from vllm.engine.arg_utils import EngineArgs
    from vllm.platforms import current_platform
    from vllm.v1.core.sched.balance.options import check_balance_scheduler
    from vllm_ascend.ascend_config import clear_ascend_config

    clear_ascend_config()
    logged = []
    handler = logging.Handler()
    handler.emit = lambda record: logged.append(record.getMessage())
    logging.getLogger("vllm").addHandler(handler)
    os.environ.update(environment or {})
    options = {
        "data_parallel_size": 2,
        "enable_expert_parallel": model == "moe",
        "enforce_eager": True,
        "max_model_len": 512,
        **(arguments or {}),
    }
    try:
        config = EngineArgs(model=models[model], **options).create_engine_config()
        from vllm_ascend.patch.platform import patch_balance_schedule

        scheduler = config.scheduler_config.get_scheduler_cls()
        policy = config.parallel_config.data_parallel_balance
        if policy != "off":
            instance = object.__new__(scheduler)
            instance.balance_gate = object()
            check_balance_scheduler(instance, config)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}", "logged": logged}
    finally:
        for name in environment or {}:
            del os.environ[name]
        logging.getLogger("vllm").removeHandler(handler)
    return {
        "error": None,
        "policy": policy,
        "platform": type(current_platform).__name__,
        "scheduler": f"{scheduler.__module__}.{scheduler.__qualname__}",
        "copy_balances": patch_balance_schedule._balance_scheduling_enabled(config),
        "worker": config.parallel_config.worker_cls,
        "logged": logged,
    }


if __name__ == "__main__":
    main(*sys.argv[1:])
