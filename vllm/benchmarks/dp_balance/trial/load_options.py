# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The options of the load, and what of all options the report may show."""

import argparse
import re
import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from ..errors import UsageError
from ..requests.arrivals import ClientTraffic
from ..requests.trace_options import add_trace_args, timed_trace_from
from ..requests.traces import read_trace
from ..requests.workload import Workload
from .load import BenchServe, Load, Replay

OURS = (
    *("--base-url", "--host", "--port", "--save-result", "--save-detailed"),
    *("--append-result", "--result-filename", "--percentile-metrics"),
)
"""Of `vllm bench serve`: the trial sets them."""


class _Parser(argparse.ArgumentParser):
    """Its errors are ours."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}.")


def load_from(words: Sequence[str], args: argparse.Namespace) -> Load:
    """The load that the words describe.

    Raises:
        UsageError: they do not.
    """
    return _replay(words, args) if args.replay else _bench_serve(words, args)


def _bench_serve(words: Sequence[str], args: argparse.Namespace) -> BenchServe:
    # They are there where a server is; the simulator does without.
    from vllm.benchmarks.serve import add_cli_args
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    given = {word.partition("=")[0].replace("_", "-") for word in words}
    if ours := given & set(OURS):
        raise UsageError(f"{min(ours)}: the trial sets it; leave it out.")

    class Parser(_Parser, FlexibleArgumentParser):
        pass

    parser = Parser(prog="vllm bench serve", add_help=False)
    add_cli_args(parser)
    parsed = parser.parse_args(list(words))
    path = parsed.dataset_path
    # That of `hf` may be a name of the hub.
    if path and parsed.dataset_name != "hf" and not Path(path).exists():
        raise UsageError(f"--dataset-path {path}: is not there.")
    return BenchServe(tuple(words), parsed, not args.disable_tqdm)


def _replay(words: Sequence[str], args: argparse.Namespace) -> Replay:
    parser = _Parser(prog="vllm bench dp-balance trial --replay", add_help=False)
    load = parser.add_argument_group("replay")
    load.add_argument("--num-prompts", type=int)
    load.add_argument("--max-concurrency", type=int)
    load.add_argument("--request-rate", type=float, default=float("inf"))
    load.add_argument("--burstiness", type=float, default=1.0)
    load.add_argument("--seed", type=int, default=0)
    load.add_argument("--header", nargs="*")
    load.add_argument("--insecure", action="store_true")
    add_trace_args(load)
    parsed = parser.parse_args(list(words))
    if parsed.dataset_path is None:
        raise UsageError("--replay: give the --dataset-path of a trace or of sessions.")
    timed = timed_trace_from(parsed)
    trace = read_trace(parsed.dataset_path, None, timed)
    workload = Workload(
        parsed.num_prompts,
        trace=parsed.dataset_path.resolve(),
        timed_trace=timed,
        session_shared=parsed.session_shared_tokens,
        session_turns=parsed.session_turns,
        length_divisor=args.length_divisor,
    )
    rate, faster = parsed.request_rate, parsed.timed_trace_rate_multiplier
    self_timed = trace.is_timed and parsed.self_timed is not False
    if self_timed and rate < float("inf"):
        # Its intervals are stretched to that rate.
        rows = trace.rows[: parsed.num_prompts]
        if (last := rows[-1].time or 0.0) <= 0:
            raise UsageError("--request-rate: the trace has requests of one time only.")
        faster, rate = last * rate / len(rows), float("inf")
    traffic = ClientTraffic(
        parsed.max_concurrency, rate, parsed.burstiness, self_timed, faster
    )
    return Replay(workload, traffic, parsed, not args.disable_tqdm)


SHOWN = re.compile(
    r"--?(dataset-name|kv-cache-dtype|dtype|quantization|all2all-backend|backend"
    r"|load-format|policy|data-parallel-backend)"
)
HIDDEN = re.compile(r"host|port|address|url|ip\b|key|header|name|path|dir|model")
NUMBER = re.compile(r"[+-]?[\d.]+(e[+-]?\d+)?|inf|true|false", re.IGNORECASE)


def shown(
    load: Sequence[str],
    serve: Sequence[str],
    policies: Sequence[str],
    args: argparse.Namespace,
) -> str:
    """The command as the report has it: options, and of their values only numbers.

    No model, prompt, address, host or path is in it.
    """
    own = [*("--policy", *policies), "--rounds", str(args.rounds)]
    own += ["--replay"] * args.replay
    for text in args.options:
        policy, _, more = text.partition("=")
        own += ["--options", f"'{policy}={' '.join(_harmless(shlex.split(more)))}'"]
    if args.length_divisor > 1:
        own += ["--length-divisor", str(args.length_divisor)]
    words = ["vllm bench dp-balance trial", *own, *_harmless(load)]
    options = serve[serve.index("serve") + 1 :] if "serve" in serve else []
    if serve:
        return " ".join([*words, "-- vllm serve MODEL", *_harmless(options)])
    return " ".join([*words, *(f"--deployment {policy}=URL" for policy in policies)])


def _harmless(words: Iterable[str]) -> list[str]:
    """Options with their numbers; other values as `…`."""
    found: list[str] = []
    option = ""
    for word in words:
        if re.match(r"--?[A-Za-z]", word):
            option, equals, value = word.partition("=")
            option = option.partition(".")[0].replace("_", "-")
            found.append(option)
            if not equals:
                continue
            word = value
        elif not option:
            continue  # the model
        is_harmless = SHOWN.fullmatch(option) or (
            NUMBER.fullmatch(word) and not HIDDEN.search(option)
        )
        found.append(word if is_harmless else "…")
    return found
