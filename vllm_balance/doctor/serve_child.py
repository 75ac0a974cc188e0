"""Parses a `vllm serve` command line as vLLM does, and stops before a model is loaded.

A process of its own, for it imports vLLM and torch, which may fail.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

RESULT = "vllm-balance doctor: "


def main(arguments: Sequence[str]) -> None:
    """Print one line of JSON: a plan, or why there is none."""
    try:
        result = look(arguments)
    except Exception as error:
        result = {"refused": sentence(error)}
    print(RESULT + json.dumps(result), flush=True)


def sentence(error: Exception) -> str:
    """What an error says, without pydantic's frame around it."""
    if hasattr(error, "errors"):
        said = [str(e.get("msg", e)) for e in error.errors()]
        return "; ".join(text.removeprefix("Value error, ") for text in said)
    return str(error) or type(error).__name__


def look(arguments: Sequence[str]) -> dict[str, Any]:
    """What the engine would be configured as.

    Args:
        arguments: from `serve` on.

    Raises:
        ValueError: vLLM or balance scheduling refuses it.
    """
    from vllm import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    commands = parser.add_subparsers(dest="subparser", required=True)
    (serve,) = cmd_init()
    serve.subparser_init(commands)
    args = parser.parse_args(list(arguments))
    if getattr(args, "model_tag", None) is not None:
        args.model = args.model_tag
    serve.validate(args)
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(
        headless=args.headless
    )
    refuse_scheduler(config)
    parallel = config.parallel_config
    ranks = parallel.data_parallel_size
    local = args.data_parallel_size_local
    return {
        "policy": parallel.data_parallel_balance,
        "ttft": parallel.data_parallel_balance_ttft,
        "ranks": ranks,
        "local_ranks": ranks if local is None else local,
        "first_rank": args.data_parallel_start_rank or 0,
        "npus_per_rank": parallel.world_size,
        "headless": args.headless,
        "port": args.port,
        "rpc_port": parallel.data_parallel_rpc_port,
        "address": args.data_parallel_address or "",
        "model": config.model_config.model,
        "options": dict(config.additional_config or {}),
    }


def refuse_scheduler(config: Any) -> None:
    """The checks of a scheduler that need no instance, which would need a model.

    Raises:
        ValueError: balance is on, and the scheduler would ignore it.
    """
    from vllm.v1.core.sched.balance.validation import check_balance_scheduler

    cls = config.scheduler_config.get_scheduler_cls()
    scheduler = cls.__new__(cls)
    scheduler.balance_gate = True  # one is made, for the policy is not off
    check_balance_scheduler(scheduler, config)
