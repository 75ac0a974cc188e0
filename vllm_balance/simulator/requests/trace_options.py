# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The command line options on the requests and on the times of sending."""

import argparse
import math
from dataclasses import fields
from pathlib import Path

from ...errors import UsageError
from ..arguments import MOST_REQUESTS, MOST_TOKENS, real, whole
from .arrivals import ClientTraffic
from .traces import LONGEST, TimedTrace
from .workload import LENGTH_HELP, Workload

LEAST_PROMPTS, TURNS = 2048, 8
"""Requests of a run by default: at least, and for each in flight. Several for each,
because those in flight are sent at once, and it takes some turns to desynchronise."""

_OF_TRACES = tuple(f"timed_trace_{field.name}" for field in fields(TimedTrace))


def add_length_args(load: argparse._ArgumentGroup) -> None:
    """Adds the options on drawn lengths."""
    add = load.add_argument
    add("--input-len", default="3500", help=f"Tokens: {LENGTH_HELP}.")
    add("--output-len", default="1500", help=f"Tokens: {LENGTH_HELP}.")
    add(
        "--prefix-share",
        type=real(0, 0.999),
        default=0.0,
        help="Share of each drawn prompt that is the beginning of a text that it has "
        "in common with others.",
    )
    add(
        "--num-prefixes",
        type=whole(1, MOST_REQUESTS),
        default=8,
        help="Of these texts.",
    )


def add_trace_args(load: argparse._ArgumentGroup) -> None:
    """Adds the options on datasets, and on the times of sending."""
    add = load.add_argument
    requests = whole(1, MOST_REQUESTS)
    add(
        "--num-prompts",
        type=requests,
        help=f"Default: {TURNS} for each in flight, at least {LEAST_PROMPTS}, or as "
        "many as the dataset has.",
    )
    add(
        "--max-concurrency",
        type=requests,
        help="Requests in flight. Default: as many as all ranks can run; without limit "
        "if there is a --request-rate.",
    )
    add(
        "--request-rate",
        type=real(1e-6, 1e6, endless=True),
        default=float("inf"),
        help="Requests per second on average (default: inf).",
    )
    add("--burstiness", type=real(1e-3, 1e6), default=1.0)
    add("--seed", type=int, default=0)
    add(
        "--dataset-name",
        choices=("custom", "timed_trace"),
        default="custom",
        help="timed_trace: send at the times of the trace; custom: take its lengths.",
    )
    add(
        "--dataset-path",
        type=Path,
        help="JSON lines as Mooncake's, CSV with a head, or sessions of "
        "kv-cache-tester, instead of --input-len and --output-len.",
    )
    add("--timed-trace-chunk-hash-size", type=whole(1, MOST_TOKENS))
    add("--timed-trace-sec-multiplier", type=real(1e-12, 1e12))
    for name in ("timestamp", "input_length", "output_length", "hash_ids"):
        option = f"--timed-trace-label-{name.replace('_', '-')}"
        add(option, default=name, help="Its name in the trace.")
    add(
        "--timed-trace-start",
        type=real(0, LONGEST),
        default=0.0,
        help="Seconds into the trace at which the window begins.",
    )
    add(
        "--timed-trace-duration",
        type=real(0, LONGEST, above=True, endless=True),
        default=float("inf"),
        help="Seconds. --num-prompts limits the requests too.",
    )
    add(
        "--timed-trace-rate-multiplier",
        type=real(1e-6, 1e6),
        default=1.0,
        help="By which factor the trace is replayed faster.",
    )
    add(
        "--session-shared-tokens",
        type=whole(0, MOST_TOKENS),
        default=0,
        help="Tokens with which the prompts of all sessions of a trace begin.",
    )
    add(
        "--session-turns",
        type=whole(1, MOST_REQUESTS),
        help="How many first requests of each session of a trace are sent. Default: "
        "all.",
    )


def refuse_unused(args: argparse.Namespace, defaults: argparse.Namespace) -> None:
    """Refuses options that would be ignored beside the others.

    Raises:
        UsageError: an option was given that changes nothing.
    """
    timed = args.dataset_name == "timed_trace"
    for is_useless, names, what_to_do in (
        (
            args.dataset_path is not None,
            ("input_len", "output_len", "prefix_share", "num_prefixes"),
            "the dataset has its own; leave it out",
        ),
        (
            args.dataset_path is None,
            ("session_turns", "session_shared_tokens", *_OF_TRACES),
            "it needs a --dataset-path",
        ),
        (
            timed,
            ("request_rate", "burstiness"),
            "requests are sent at the times of the trace; leave it out, or give "
            "--dataset-name custom",
        ),
        (
            not timed,
            ("timed_trace_rate_multiplier",),
            "requests are not sent at the times of a trace; give a --request-rate",
        ),
        (args.request_rate == math.inf, ("burstiness",), "give a --request-rate, too"),
        (args.prefix_share == 0, ("num_prefixes",), "give a --prefix-share, too"),
        (
            not args.save_result,
            ("result_dir", "result_filename"),
            "nothing is saved; give --save-result, too",
        ),
    ):
        for name in names if is_useless else ():
            if (value := getattr(args, name)) != getattr(defaults, name):
                option = f"--{name.replace('_', '-')}"
                raise UsageError(f"{option} {value}: {what_to_do}.")


def timed_trace_from(args: argparse.Namespace) -> TimedTrace:
    """The options on reading a trace."""
    names = [field.name for field in fields(TimedTrace)]
    return TimedTrace(**{name: getattr(args, f"timed_trace_{name}") for name in names})


def workload_from(args: argparse.Namespace, slots: int) -> Workload:
    """The requests that the options describe, for `slots` on all ranks."""
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
    """The traffic: by default a closed loop over all slots."""
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
