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
    add = load.add_argument
    add(
        "--dataset-name",
        choices=("custom", "timed_trace"),
        default="custom",
        help="timed_trace: a trace with times (CSV of Azure or BurstGPT, JSON lines of "
        "Mooncake or Bailian, a result saved with --save-detailed).",
    )
    text = "A trace, a custom dataset (.jsonl) or a result saved with --save-detailed, "
    text += "instead of --input-len and --output-len."
    add("--dataset-path", type=Path, help=text)
    text = "Whether requests are sent at the times of the trace. Default: yes with "
    text += "--dataset-name timed_trace."
    add("--self-timed", action=argparse.BooleanOptionalAction, help=text)
    add("--timed-trace-chunk-hash-size", type=int)
    add("--timed-trace-sec-multiplier", type=float)
    for name in ("timestamp", "input_length", "output_length", "hash_ids"):
        option = f"--timed-trace-label-{name.replace('_', '-')}"
        add(option, default=name, help="Name in JSON lines.")
    for option, default, text in (
        ("start", 0.0, "Seconds into the trace at which the window begins."),
        ("duration", float("inf"), "Seconds. --num-prompts limits the requests too."),
        ("rate-multiplier", 1.0, "Replays the trace so many times faster."),
    ):
        add(f"--timed-trace-{option}", type=float, default=default, help=text)
    text = "Share of each drawn prompt that is the beginning of a text that it has in "
    text += "common with others."
    add("--prefix-share", type=float, default=0.0, help=text)
    add("--num-prefixes", type=int, default=8, help="Of these texts.")
    text = "Tokens with which the prompts of all sessions of a trace begin."
    add("--session-shared-tokens", type=int, default=0, help=text)
    text = "So many first requests of each session of a trace. Default: all."
    add("--session-turns", type=int, help=text)


def timed_trace_from(args: argparse.Namespace) -> TimedTrace:
    """How the options say that a trace is to be read."""
    names = [field.name for field in fields(TimedTrace)]
    return TimedTrace(**{name: getattr(args, f"timed_trace_{name}") for name in names})


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
        timed_trace_from(args),
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
