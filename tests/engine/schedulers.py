"""Real schedulers in this process, without an engine around them."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from vllm import __version__
from vllm.config import VllmConfig
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.core.sched.balance.gate import BalanceGate
from vllm.v1.core.sched.balance.group.exchange import RowExchange
from vllm.v1.core.sched.balance.policies.by_name import create_policy
from vllm.v1.core.sched.balance.stats import BalanceStats
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import ModelRunnerOutput

import bare_schedulers
from bare_schedulers import BLOCK_SIZE

ROOT = Path(__file__).parents[2]
make_request = bare_schedulers.make_request


def engine_config(model: Path, **arguments: Any) -> VllmConfig:
    """The configuration of a small engine of that model."""
    defaults: dict[str, Any] = {
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "max_model_len": 256,
        "block_size": BLOCK_SIZE,
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "distributed_executor_backend": "uni",
        "enable_prefix_caching": False,
    }
    return EngineArgs(model=str(model), **defaults | arguments).create_engine_config()


def make_scheduler(
    config: VllmConfig,
    scheduler_class: type = Scheduler,
    num_blocks: int = 100,
    **arguments: Any,
) -> Any:
    """A scheduler with statistics and so many KV cache blocks of 16 tokens."""
    return bare_schedulers.make_scheduler(
        config, num_blocks, scheduler_class, log_stats=True, **arguments
    )


def give_gate(
    scheduler: Any,
    policy: str,
    exchange: Any = None,
    ttft_budget: float | None = None,
    **bound: int,
) -> BalanceGate:
    """A gate with that policy, exchange and bound, instead of the scheduler's."""
    gate = BalanceGate(
        scheduler,
        partial(create_policy, policy, **bound),
        exchange or RowExchange(timeout=1.0),
        BalanceStats(policy=policy),
        ttft_budget,
    )
    scheduler.balance_gate = gate
    return gate


def step(scheduler: Any) -> Any:
    """Schedules, answers every complete prompt with one token, and updates."""
    output = scheduler.schedule()
    ids = list(output.num_scheduled_tokens)
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={req_id: index for index, req_id in enumerate(ids)},
            sampled_token_ids=[
                [] if scheduler.requests[req_id].is_prefill_chunk else [7]
                for req_id in ids
            ],
        ),
    )
    return output


@contextmanager
def steps_of_any_size(scheduler: Any) -> Iterator[None]:
    """A step has room for every prompt; from 0.28 on two numbers say for how much."""
    config = scheduler.scheduler_config
    limits = scheduler.max_num_scheduled_tokens, config.max_num_batched_tokens
    scheduler.max_num_scheduled_tokens = config.max_num_batched_tokens = 10_000
    yield
    scheduler.max_num_scheduled_tokens, config.max_num_batched_tokens = limits


def pristine_module(path: str) -> ModuleType:
    """A module of the unpatched upstream tree, beside the installed one.

    Its own imports go to the installed, patched vllm.
    """
    (source,) = ROOT.glob(f"build/pristine/vllm-{__version__}/{path}")
    name = "pristine_" + Path(path).stem
    spec = importlib.util.spec_from_file_location(name, source)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
