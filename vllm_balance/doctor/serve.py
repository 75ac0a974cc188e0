"""Checks a `vllm serve` command line, and says what balance would do with it.

A child process parses it with vLLM's code, and loads no model. A child, because it
imports vLLM and torch, which may fail.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import ssl
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from vllm_balance.doctor.diagnosis import Diagnosis
from vllm_balance.doctor.machine import Machine
from vllm_balance.doctor.plan import Plan

CHILD = (
    "import sys; sys.path = [folder for folder in sys.path if folder];"
    "from vllm_balance.doctor.serve import main; main(sys.argv[1:])"
)
"""It imports nothing from the current folder, which may be a checkout of vLLM."""
RESULT = "vllm-balance doctor: "
SECONDS = 300.0
"""Importing vLLM and torch_npu takes a minute on a busy machine."""


def plan_of(machine: Machine, command: Sequence[str]) -> tuple[Plan, list[Diagnosis]]:
    """Parse a command line.

    A wrapper may stand before `vllm`. If the server would refuse the command, the plan
    is that of no command.
    """
    if not command:
        return Plan(), []
    starts = [i for i, word in enumerate(command) if Path(word).name == "vllm"]
    if not starts or command[starts[0] + 1 : starts[0] + 2] != ["serve"]:
        words = " ".join(command)
        raise ValueError(f"expected `vllm serve …` after --, found {words!r}")
    child = (sys.executable, "-c", CHILD, *command[starts[0] + 1 :])
    # PYTHONSAFEPATH does the same for the child in which vLLM inspects a model class.
    text, status = machine.run(*child, seconds=SECONDS, PYTHONSAFEPATH="1")
    results = re.findall(rf"^{RESULT}(.*)$", text, re.M)
    result = json.loads(results[-1]) if results else {}
    if "policy" in result:
        plan = Plan(**result)
        return plan, list(_lines(machine, plan))
    # The parser, and the guard of the start, end the process with one line.
    errors = re.findall(r"(?:^|\s)error: (.+)", text) or [f"{status}: {text[-200:]}"]
    do = "change the command line; docs/troubleshooting.md explains the message"
    refused = result.get("refused", errors[-1])
    return Plan(), [Diagnosis("vllm serve", "bad", refused, do=do)]


def _lines(machine: Machine, plan: Plan) -> Iterator[Diagnosis]:
    last = plan.first_rank + plan.local_ranks - 1
    ranks = f"ranks {plan.first_rank} to {last}" if plan.local_ranks else "none"
    ranks_here = f"{ranks} of {plan.ranks} on this host"
    yield Diagnosis("vllm serve", "ok", f"{plan.model}, {ranks_here}")
    text = f"{plan.policy}: {plan.ranks} ranks agree once per step"
    text = "off: the schedule of stock vLLM" if plan.policy == "off" else text
    yield Diagnosis("balance", "ok", text)
    needed, visible = plan.local_ranks * plan.npus_per_rank, len(machine.visible)
    if machine.is_for_npus and not machine.smi.problem and visible < needed:
        expected = f"{needed}: {plan.npus_per_rank} for each of {plan.local_ranks}"
        do = "--data-parallel-size-local, --tensor-parallel-size, or more NPUs"
        yield Diagnosis("NPUs of the ranks", "bad", f"{visible} visible", expected, do)


def main(arguments: Sequence[str]) -> None:
    try:
        result = look(arguments)
    except Exception as error:
        result = {"refused": sentence(error)}
    print(RESULT + json.dumps(result), flush=True)


def sentence(error: Exception) -> str:
    """The message of an error, without the text that pydantic adds."""
    if hasattr(error, "errors"):
        messages = [str(e.get("msg", e)) for e in error.errors()]
        return "; ".join(text.removeprefix("Value error, ") for text in messages)
    return str(error) or type(error).__name__


def look(arguments: Sequence[str]) -> dict[str, Any]:
    """The fields of `Plan`."""
    from vllm import AsyncEngineArgs
    from vllm.entrypoints.cli.serve import cmd_init
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.argparse_utils import FlexibleArgumentParser
    from vllm.v1.core.sched.balance.options import check_balance_scheduler

    parser = FlexibleArgumentParser(prog="vllm")
    (serve,) = cmd_init()
    serve.subparser_init(parser.add_subparsers(dest="subparser", required=True))
    args = parser.parse_args(list(arguments))
    if getattr(args, "model_tag", None) is not None:
        args.model = args.model_tag
    serve.validate(args)
    check_address(args)
    config = AsyncEngineArgs.from_cli_args(args).create_engine_config(
        UsageContext.OPENAI_API_SERVER, headless=args.headless
    )
    # An instance without __init__, which would need a model, is enough for the checks.
    scheduler_cls = config.scheduler_config.get_scheduler_cls()
    scheduler = scheduler_cls.__new__(scheduler_cls)
    scheduler.balance_gate = True  # one is made, for the policy is not off
    check_balance_scheduler(scheduler, config)
    parallel = config.parallel_config
    ranks = parallel.data_parallel_size
    local = args.data_parallel_size_local
    unasked = (
        ("headless", args.headless),
        ("grpc", args.grpc),
        # Each rank listens on another port.
        (
            "data-parallel-multi-port-external-lb",
            args.data_parallel_multi_port_external_lb,
        ),
        ("ssl-cert-reqs 2", args.ssl_cert_reqs == ssl.CERT_REQUIRED),
        ("disable-log-stats", args.disable_log_stats),
    )
    return {
        "policy": parallel.data_parallel_balance,
        "ranks": ranks,
        "local_ranks": ranks if local is None else local,
        "first_rank": args.data_parallel_start_rank or 0,
        "npus_per_rank": parallel.world_size,
        "headless": args.headless,
        "port": args.port,
        "rpc_port": parallel.data_parallel_rpc_port,
        "address": args.data_parallel_address or "",
        "model": config.model_config.model,
        "host": args.host or "",
        "is_https": is_https(args),
        "uds": args.uds or "",
        "unasked": next((f"--{name}" for name, is_given in unasked if is_given), ""),
    }


def is_https(args: argparse.Namespace) -> bool:
    return bool(args.ssl_keyfile or args.ssl_certfile)


def check_address(args: argparse.Namespace) -> None:
    """Checks that vLLM makes only after it has loaded the model."""
    for option in ("port", "data_parallel_rpc_port"):
        if (port := getattr(args, option)) and not 0 < port < 1 << 16:
            raise ValueError(f"--{option.replace('_', '-')} {port}: above 65535")
    names = ("ssl_certfile", "ssl_keyfile", "ssl_ca_certs")
    files = {name: path for name in names if (path := getattr(args, name))}
    for option, path in files.items():
        if not os.access(path, os.R_OK):
            problem = "cannot be read" if os.path.lexists(path) else "no such file"
            raise ValueError(f"--{option.replace('_', '-')} {path}: {problem}")
    if is_https(args) and "ssl_certfile" not in files:
        raise ValueError("--ssl-keyfile: give its --ssl-certfile, too")
    # Not of a pipe, which can be read only once.
    if is_https(args) and all(Path(path).is_file() for path in files.values()):
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        shown = " ".join(f"--{n.replace('_', '-')} {path}" for n, path in files.items())
        try:
            context.load_cert_chain(args.ssl_certfile, args.ssl_keyfile, password="")
            if args.ssl_ca_certs:
                context.load_verify_locations(args.ssl_ca_certs)
        except ssl.SSLError as error:
            raise ValueError(f"{shown}: cannot be used ({error})") from None
