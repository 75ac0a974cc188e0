# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The command line options that say which requests are sent, and when."""

import argparse
from dataclasses import fields
from pathlib import Path

from ..arguments import MOST_REQUESTS, MOST_TOKENS, real, whole
from ..errors import UsageError
from .arrivals import ClientTraffic
from .traces import LONGEST, TimedTrace
from .workload import Workload

LEAST_PROMPTS, TURNS = 2048, 8
"""Requests of a run by default: the least, and for each in flight. All that are in
flight are sent at once, and it takes some turns until that is forgotten."""


def add_trace_args(
    load: argparse._ArgumentGroup, lengths: argparse._MutuallyExclusiveGroup
) -> None:
    """Adds the options about when requests are sent, and datasets to `lengths`."""
    add = load.add_argument
    requests = whole(1, MOST_REQUESTS)
    text = f"Default: {TURNS} for each in flight, at least {LEAST_PROMPTS}, or as many "
    add("--num-prompts", type=requests, help=text + "as the dataset has.")
    text = "Requests in flight. Default: as many as all ranks can run; without limit "
    text += "if there is a --request-rate."
    add("--max-concurrency", type=requests, help=text)
    text = "Requests per second on average (default: inf)."
    rate = real(1e-6, 1e6, endless=True)
    add("--request-rate", type=rate, default=float("inf"), help=text)
    add("--seed", type=int, default=0)
    add(
        "--dataset-name",
        choices=("custom", "timed_trace"),
        default="custom",
        help="timed_trace: send at the times of the trace; custom: take its lengths.",
    )
    text = "JSON lines as Mooncake's, CSV with a head, or sessions of kv-cache-tester, "
    text += "instead of --input-len and --output-len."
    lengths.add_argument("--dataset-path", type=Path, help=text)
    add("--timed-trace-chunk-hash-size", type=whole(1, MOST_TOKENS))
    add("--timed-trace-sec-multiplier", type=real(1e-12, 1e12))
    for name in ("timestamp", "input_length", "output_length", "hash_ids"):
        option = f"--timed-trace-label-{name.replace('_', '-')}"
        add(option, default=name, help="Its name in the trace.")
    text = "Seconds into the trace at which the window begins."
    add("--timed-trace-start", type=real(0, LONGEST), default=0.0, help=text)
    text = "Seconds. --num-prompts limits the requests too."
    seconds = real(0, LONGEST, above=True, endless=True)
    add("--timed-trace-duration", type=seconds, default=float("inf"), help=text)
    text = "By which factor the trace is replayed faster."
    times = real(1e-6, 1e6)
    add("--timed-trace-rate-multiplier", type=times, default=1.0, help=text)
    text = "Tokens with which the prompts of all sessions of a trace begin."
    shared = whole(0, MOST_TOKENS)
    add("--session-shared-tokens", type=shared, default=0, help=text)
    text = "How many first requests of each session of a trace are sent. Default: all."
    add("--session-turns", type=whole(1, MOST_REQUESTS), help=text)


def timed_trace_from(args: argparse.Namespace) -> TimedTrace:
    """How the options say that a trace is to be read."""
    names = [field.name for field in fields(TimedTrace)]
    return TimedTrace(**{name: getattr(args, f"timed_trace_{name}") for name in names})


def workload_from(args: argparse.Namespace, slots: int) -> Workload:
    """The requests that the options describe, for so many places on all ranks."""
    if args.dataset_name == "timed_trace" and args.dataset_path is None:
        raise UsageError("--dataset-name timed_trace: give its --dataset-path.")
    num_prompts = args.num_prompts
    if num_prompts is None and args.dataset_path is None:
        in_flight = max(slots, args.max_concurrency or 0)
        num_prompts = min(MOST_REQUESTS, max(LEAST_PROMPTS, TURNS * in_flight))
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
    self_timed = args.dataset_name == "timed_trace"
    if self_timed and args.request_rate != float("inf"):
        raise UsageError(
            f"--request-rate {args.request_rate}: requests are sent at the times of "
            "the trace; leave it out, or give --dataset-name custom."
        )
    concurrency = args.max_concurrency
    if concurrency is None and args.request_rate == float("inf") and not self_timed:
        concurrency = slots
    return ClientTraffic(
        concurrency,
        args.request_rate,
        self_timed,
        args.timed_trace_rate_multiplier,
    )
