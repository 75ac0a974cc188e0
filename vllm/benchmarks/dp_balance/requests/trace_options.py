# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The command line options that say which requests are sent, and when."""

import argparse
from dataclasses import fields
from pathlib import Path

from ..errors import UsageError
from .arrivals import ClientTraffic
from .traces import TimedTrace
from .workload import Workload


def add_trace_args(load: argparse._ArgumentGroup) -> None:
    """Adds the options about datasets and shared prefixes."""
    load.add_argument(
        "--dataset-name",
        choices=("custom", "timed_trace"),
        default="custom",
        help="timed_trace: a trace with times (CSV of Azure or BurstGPT, JSON lines of "
        "Mooncake or Bailian, a result saved with --save-detailed).",
    )
    load.add_argument(
        "--dataset-path",
        type=Path,
        help="A trace, a custom dataset (.jsonl) or a result saved with "
        "--save-detailed, instead of --input-len and --output-len.",
    )
    load.add_argument(
        "--self-timed",
        action=argparse.BooleanOptionalAction,
        help="Whether requests are sent at the times of the trace. Default: yes with "
        "--dataset-name timed_trace.",
    )
    load.add_argument("--timed-trace-chunk-hash-size", type=int)
    load.add_argument("--timed-trace-sec-multiplier", type=float)
    for name in ("timestamp", "input_length", "output_length", "hash_ids"):
        option = f"--timed-trace-label-{name.replace('_', '-')}"
        load.add_argument(option, default=name, help="Name in JSON lines.")
    for option, default, text in (
        ("start", 0.0, "Seconds into the trace at which the window begins."),
        ("duration", float("inf"), "Seconds. --num-prompts limits the requests too."),
        ("rate-multiplier", 1.0, "Replays the trace so many times faster."),
    ):
        option = f"--timed-trace-{option}"
        load.add_argument(option, type=float, default=default, help=text)
    load.add_argument(
        "--prefix-share",
        type=float,
        default=0.0,
        help="Share of each drawn prompt that is the beginning of a text that it has "
        "in common with others.",
    )
    load.add_argument("--num-prefixes", type=int, default=8, help="Of these texts.")
    text = "Tokens with which the prompts of all sessions of a trace begin."
    load.add_argument("--session-shared-tokens", type=int, default=0, help=text)
    text = "So many first requests of each session of a trace. Default: all."
    load.add_argument("--session-turns", type=int, help=text)


def workload_from(args: argparse.Namespace) -> Workload:
    """The requests that the options describe."""
    if args.dataset_name == "timed_trace" and args.dataset_path is None:
        raise UsageError("--dataset-name timed_trace: give its --dataset-path.")
    if args.self_timed is not None and args.dataset_name != "timed_trace":
        raise UsageError(
            "--self-timed/--no-self-timed is only supported with --dataset-name "
            "timed_trace."
        )
    num_prompts = args.num_prompts
    if num_prompts is None and args.dataset_path is None:
        num_prompts = 2048
    return Workload(
        num_prompts,
        args.input_len,
        args.output_len,
        args.dataset_path,
        TimedTrace(
            **{
                field.name: getattr(args, f"timed_trace_{field.name}")
                for field in fields(TimedTrace)
            }
        ),
        args.prefix_share,
        args.num_prefixes,
        args.session_shared_tokens,
        args.session_turns,
    )


def traffic_from(args: argparse.Namespace, slots: int) -> ClientTraffic:
    """When requests are sent.

    That is a closed loop over all slots unless something else is asked for.
    """
    self_timed = args.self_timed
    if self_timed is None:
        self_timed = args.dataset_name == "timed_trace"
    concurrency = args.max_concurrency
    if concurrency is None and args.request_rate == float("inf") and not self_timed:
        concurrency = slots
    return ClientTraffic(
        concurrency,
        args.request_rate,
        args.burstiness,
        self_timed,
        args.timed_trace_rate_multiplier,
    )
