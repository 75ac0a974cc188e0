# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The command line options that describe a scenario."""

import argparse
import sys
from dataclasses import fields, replace
from datetime import datetime
from pathlib import Path

from vllm_balance.core.policies import ALONE, LatencyLimits

from ..errors import UsageError
from .arguments import MOST_RANKS, MOST_TOKENS, whole
from .cost_from import cost_of
from .front_end.load_balancers import AS_SERVED, LOAD_BALANCERS
from .policies import BALANCE, SERVED_POLICIES, PolicySpec, make_controller
from .rank.limits import RankLimits
from .requests.arrivals import Frontend
from .requests.trace_options import (
    add_length_args,
    add_trace_args,
    refuse_unused,
    traffic_from,
    workload_from,
)
from .results import FORMAT_VERSION, versions, write_json
from .scenario import ROLES, Scenario
from .step_time.model import CostModel
from .step_time.presets import PRESETS

COST_FIELDS = tuple(field.name for field in fields(CostModel))


def add_scenario_args(parser: argparse.ArgumentParser) -> None:
    """Adds the options that `policies_from` and `scenario_from` read."""
    parser.add_argument(
        "--policy",
        nargs="+",
        metavar="NAME",
        help=f"Any of {', '.join(SERVED_POLICIES)}. Parameters follow a colon: cap:"
        f"margin=1. Default: {' '.join(SERVED_POLICIES)}; of one rank: off adaptive.",
    )
    parser.add_argument(
        "--disable-tqdm",
        action="store_true",
        help="Specify to disable tqdm progress bar.",
    )
    _add_server_args(parser)
    load = parser.add_argument_group("workload", "as given to `vllm bench serve`")
    add_length_args(load)
    add_trace_args(load)
    _add_cost_args(parser)
    parser.add_argument(
        "--num-seeds", type=whole(1, 1000), default=1, help="Runs per policy."
    )


def _add_server_args(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("server", "as given to `vllm serve`").add_argument
    add("--data-parallel-size", "-dp", type=whole(1, MOST_RANKS), default=4)
    add(
        "--role",
        choices=ROLES,
        default=ROLES[0],
        help="What the instance does of a request: a prefill instance ends it at its "
        "first token; to a decode instance it comes with its KV cache, which takes no "
        "time here, and all policies but off are the same.",
    )
    add("--max-num-seqs", type=whole(1, 65_536), default=32)
    add("--max-num-batched-tokens", type=whole(1, MOST_TOKENS), default=4096)
    add(
        "--num-gpu-blocks",
        type=whole(2, 10**9),
        help="Blocks of 16 tokens in each rank's KV cache, vLLM's null block included. "
        "Default: it never fills.",
    )
    add(
        "--num-speculative-tokens",
        "--spec-tokens",
        type=whole(0, 64),
        default=0,
        help="Drafts of a request in each step. Default: no speculation.",
    )
    add(
        "--synthetic-acceptance-rates",
        metavar="RATE,...",
        help="With speculation, for each draft the chance that it and those before it "
        "are accepted, as of the same name in vLLM's speculative config: 0.8,0.6.",
    )
    add(
        "--load-balancer",
        choices=(AS_SERVED, *LOAD_BALANCERS),
        default=AS_SERVED,
        help="as-served: aware of prefixes for the policies of a server, or by context "
        "on a decode instance; that of vLLM 0.23 for off. Or one for all.",
    )
    add(
        "--api-server-count",
        "-asc",
        type=whole(1, MOST_RANKS),
        help="Default: one per rank, as of `vllm serve`.",
    )
    for name, token in (("ttft", "the first token"), ("tpot", "each other token")):
        add(
            f"{BALANCE}-{name}-ms",
            type=whole(0, 10**9),
            default=0,
            help=f"What {token} is to take at most; adaptive keeps it where it can, "
            "and the table has the share of requests that keep all limits. 0: no "
            "limit.",
        )
    add(
        "--async-scheduling",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="Whether the server schedules a step before the one before it has ended.",
    )


def _add_cost_args(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("step time")
    add_one_of = group.add_mutually_exclusive_group().add_argument
    add_one_of(
        "--cost-preset",
        choices=tuple(PRESETS),
        default="deepseek-v3.1-5212",
        help="Constants estimated from public operator timings, by device, data and "
        "tensor parallel size; the default is fitted to vllm-ascend #5212.",
    )
    add_one_of(
        "--cost-from",
        metavar="URL|FILE",
        help="A server that has served a load with adaptive, or the report.json of a "
        "trial: constants as learned there, for its --max-num-batched-tokens. Or what "
        "simulate or recommend saved: constants as they were there.",
    )
    group.add_argument(
        "--cost",
        metavar="NAME=SECONDS,...",
        help=f"Constants by name ({', '.join(COST_FIELDS)}); those left out are of "
        "--cost-from or --cost-preset.",
    )


def add_result_args(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `vllm bench serve` about results."""
    parser.add_argument(
        "--save-result",
        action="store_true",
        help="Specify to save benchmark results to a json file",
    )
    parser.add_argument(
        "--result-dir",
        type=Path,
        default=Path(),
        help="Specify directory to save benchmark json results. If not specified, "
        "results are saved in the current directory.",
    )
    parser.add_argument(
        "--result-filename",
        help="Specify the filename to save benchmark json results. If not specified, "
        "it names the command and the time.",
    )


def save_result(args: argparse.Namespace, kind: str, parts: dict[str, object]) -> None:
    """Writes the result of the verb `kind`, if the options say so.

    Raises:
        UsageError: the file cannot be written.
    """
    if not args.save_result:
        return
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S")
    name = args.result_filename or f"dp-balance-{kind}-{stamp}.json"
    path = Path(args.result_dir) / name
    document = {
        "format": f"dp-balance {kind}",
        "format_version": FORMAT_VERSION,
        "date": stamp,
        "command": " ".join(sys.argv),
        "versions": versions(),
    }
    write_json(path, document | parts)
    print(f"Saved to {path}")


def policies_from(args: argparse.Namespace) -> list[str]:
    """The policies of the options, each once.

    Raises:
        UsageError: a name is unknown, or the policy does nothing on one rank.
    """
    is_alone = args.data_parallel_size == 1
    available = ("off", *ALONE) if is_alone else SERVED_POLICIES
    policies = args.policy or available
    for name in policies:
        make_controller(name)
        unavailable = {*SERVED_POLICIES} - {*available}
        if is_alone and PolicySpec.parse(name).name in unavailable:
            raise UsageError(
                f"--policy {name}: needs ranks that wait for each other, and "
                f"--data-parallel-size is 1; choose from {', '.join(available)}."
            )
    return list(dict.fromkeys(policies))


def scenario_from(args: argparse.Namespace) -> Scenario:
    """The scenario that the options describe.

    Raises:
        UsageError: an option is wrong; the message names it.
    """
    limits = RankLimits(
        args.data_parallel_size,
        args.max_num_seqs,
        args.max_num_batched_tokens,
        args.num_gpu_blocks,
        _acceptance_rates(args),
    )
    api_servers = args.api_server_count
    refuse_unused(args, _defaults())
    slots = limits.ranks * limits.max_num_seqs
    return Scenario(
        limits,
        cost_from(args),
        workload_from(args, slots),
        traffic_from(args, slots),
        Frontend(api_servers=limits.ranks if api_servers is None else api_servers),
        args.load_balancer,
        async_scheduling=args.async_scheduling,
        role=args.role,
        latency_limits=LatencyLimits(
            args.data_parallel_balance_ttft_ms / 1e3,
            args.data_parallel_balance_tpot_ms / 1e3,
        ),
    )


def _defaults() -> argparse.Namespace:
    """The default values of all options."""
    parser = argparse.ArgumentParser()
    add_scenario_args(parser)
    add_result_args(parser)
    return parser.parse_args([])


def _acceptance_rates(args: argparse.Namespace) -> tuple[float, ...]:
    text, drafts = args.synthetic_acceptance_rates, args.num_speculative_tokens
    try:
        rates = tuple(map(float, text.split(","))) if text is not None else ()
    except ValueError:
        rates = None
    if rates is None or len(rates) != drafts:
        raise UsageError(
            f"--num-speculative-tokens {drafts} --synthetic-acceptance-rates {text}: "
            "give a rate for each draft, with commas between them."
        )
    return rates


def cost_from(args: argparse.Namespace) -> CostModel:
    """The cost model of --cost-preset or --cost-from, and --cost.

    Raises:
        UsageError: one of the options is not valid.
    """
    changes = _cost_changes(args.cost)
    if args.cost_from is not None:
        cost = cost_of(args.cost_from, args.max_num_batched_tokens)
    else:
        cost = PRESETS[args.cost_preset]
    return replace(cost, **changes)


def _cost_changes(text: str | None) -> dict[str, float]:
    changes: dict[str, float] = {}
    for item in text.split(",") if text is not None else ():
        name, _, value = item.partition("=")
        try:
            if name not in COST_FIELDS or name in changes:
                raise ValueError
            changes[name] = float(value)
        except ValueError:
            raise UsageError(
                f"--cost {item}: give NAME=NUMBER, each once, with a name of "
                f"{', '.join(COST_FIELDS)}."
            ) from None
    return changes
