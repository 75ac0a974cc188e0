"""The same workload through real servers on the emulated device, policy by policy.

Each policy is served and measured with ``vllm bench serve`` several times, in turn;
`adaptive` also with an API server for each rank. The workload keeps all slots in use;
with ``--replay`` it is a window of a real trace, at its own times, and with
``--sessions`` agents that wait for each answer. Afterwards the step
time is calibrated from the logs of "off" and the same requests are simulated. Runs
whose result is in the folder already are not repeated. Run it with the interpreter of
an environment in which the reference wheel is installed; the model is
any mixture-of-experts model, of which only the configuration and the tokenizer are
used (for sessions, one of vllm_balance.reference.tiny_models)::

    python bench/wall_clock.py MODEL --data-parallel-size 4 [--replay | --sessions]
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm
from vllm.benchmarks.dp_balance.front_end.load_balancers import AS_SERVED, BY_PREFIXES
from vllm.benchmarks.dp_balance.metrics import measure as measure_run
from vllm.benchmarks.dp_balance.rank.engine import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic, Frontend
from vllm.benchmarks.dp_balance.requests.traces import read_trace
from vllm.benchmarks.dp_balance.results import versions, write_json
from vllm.benchmarks.dp_balance.scenario import (
    Scenario,
    Workload,
    simulate,
    simulate_and_measure,
)
from vllm.benchmarks.dp_balance.step_time.fit import Fit, fit
from vllm.benchmarks.dp_balance.step_time.model import CostModel
from vllm.benchmarks.dp_balance.step_time.steps import read_server_logs

sys.path.append(str(Path(__file__).parents[1] / "tools"))

import sessions

# The demo is this benchmark with four ranks and two policies, once.
from balance_tools.demo.load import (
    DEVICE,
    MAX_TOKENS,
    SLOTS,
    STEADY,
    all_slots,
    send,
    served_by,
    steady_throughput,
)

RESULTS = Path(__file__).parent / "results"


class Variant(NamedTuple):
    """What is served."""

    policy: str
    api_server_per_rank: bool = False
    dispatch: str | None = None
    """What `--data-parallel-dispatch` says."""
    names_ranks: bool = False
    """Whether each session names its rank in `X-data-parallel-rank`."""

    @property
    def options(self) -> list[str]:
        """Of the server."""
        if self.dispatch is None:
            return []
        return ["--data-parallel-dispatch", self.dispatch]


VARIANTS = {
    "off": Variant("off"),
    "cap": Variant("cap"),
    "align": Variant("align"),
    "adaptive": Variant("adaptive"),
    "adaptive, an API server per rank": Variant("adaptive", api_server_per_rank=True),
}
OF_SESSIONS = {
    "off": Variant("off"),
    "off, by prefixes": Variant("off", dispatch="prefixes"),
    "adaptive": Variant("adaptive"),
    "adaptive, ranks named": Variant("adaptive", names_ranks=True),
    "adaptive, vLLM's dispatch": Variant("adaptive", dispatch="vllm"),
    "adaptive, an API server per rank": Variant("adaptive", api_server_per_rank=True),
}
SESSIONS_OF_A_RANK = 4
SESSIONS = Path(__file__).parent / "traces" / "agentx"
BY_SESSION = "session-affinity"
"""The simulator's name for clients whose sessions name their ranks."""
TRACE = Path(__file__).parent / "traces" / "azure_2023_conv.csv"
FIRST, SHORTER = 1500, 4
"""The first request of the window, and what its lengths are divided by: a prompt then
takes a step or a few, as it would of a real server's steps."""
LOAD = 0.9
"""Share of `off`'s capacity at which the window is sent; as simulated."""
START_S = 300
SEEDS = range(5)
"""Of the simulation; the lengths are those that were sent."""
FIGURES = (
    *("output_throughput", STEADY, "mean_tpot_ms", "mean_ttft_ms"),
    *("median_ttft_ms", "p99_ttft_ms", "mean_e2el_ms", "computed_share"),
)
"""The last one only of sessions."""


def replay(args: argparse.Namespace) -> tuple[list[str], float]:
    """Options of `vllm bench serve` that send a window of the trace at its times.

    It gets the prompts as hash ids of which no two requests share one.

    Returns:
        The options, and the requests per second.
    """
    chunk = 16
    rows = read_trace(TRACE).rows[FIRST:][: args.num_prompts]
    lines, chunks, tokens = [], 0, 0
    for row in rows:
        prompt = max(1, row.prompt_len // SHORTER)
        output = max(1, row.output_len // SHORTER)
        tokens += output
        line = {
            "timestamp": (row.time or 0.0) - (rows[0].time or 0.0),
            "input_length": prompt,
            "output_length": output,
            "hash_ids": [*range(chunks, chunks := chunks + -(-prompt // chunk))],
        }
        lines.append(json.dumps(line))
    path = args.folder / f"window-{len(rows)}.jsonl"
    path.write_text("\n".join(lines) + "\n")
    limits = RankLimits(args.data_parallel_size, SLOTS, MAX_TOKENS)
    all_used = Scenario(
        limits,
        CostModel(**DEVICE),
        Workload(None, trace=path),
        ClientTraffic(max_concurrency=limits.ranks * SLOTS),
        load_balancer=AS_SERVED,
    )
    off = simulate_and_measure(all_used, "off", 0)
    seconds = tokens / (LOAD * off.steady_output_throughput)
    multiplier = seconds / line["timestamp"]
    return [
        *("--dataset-name", "timed_trace", "--dataset-path", str(path.resolve())),
        *("--timed-trace-chunk-hash-size", str(chunk), "--ignore-eos"),
        *("--timed-trace-sec-multiplier", str(multiplier)),
    ], len(rows) / seconds


def options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data-parallel-size", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-prompts", type=int, default=160)
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--replay", action="store_true", help="send a trace's window")
    how.add_argument("--sessions", action="store_true", help="send agents' sessions")
    parser.add_argument("--folder", type=Path, default=Path("build/wall_clock"))
    return parser.parse_args()


def measure(
    args: argparse.Namespace,
    name: str,
    variants: Mapping[str, Variant],
    load: Sequence[str],
    asked: Sequence[sessions.Session],
) -> tuple[dict[str, list[dict[str, float]]], dict[str, list[Fit]]]:
    """Serves and measures what is missing; by variant, the figures and the fits.

    `load` are options of `vllm bench serve`, `asked` sessions to send instead.
    """
    ranks, python = args.data_parallel_size, Path(sys.executable)
    folder = Path(args.model)  # or a name that the hub's cache has
    model = folder.resolve() if folder.exists() else folder
    runs: dict[str, list[dict[str, float]]] = {title: [] for title in variants}
    fits: dict[str, list[Fit]] = {title: [] for title in variants}
    answers = None
    total = args.repeats * len(variants)
    with tqdm(desc=name, total=total, unit="run", disable=None) as bar:
        for repeat in range(args.repeats):
            for number, (title, variant) in enumerate(variants.items()):
                path = args.folder / f"{name}-{number}-{repeat}.json"
                log = path.with_suffix(".server.log")
                if not path.exists():
                    with served_by(
                        *(args.folder, model, variant.policy),
                        ranks=ranks,
                        api_servers=ranks if variant.api_server_per_rank else 1,
                        options=[
                            *variant.options,
                            *(sessions.OPTIONS if asked else ()),
                        ],
                        name=log.stem,
                        start_limit_s=START_S,
                    ) as server:
                        if asked:
                            pins = ranks if variant.names_ranks else 0
                            sessions.replay(server, path, asked, pins)
                        else:
                            send(python, server, path, args.num_prompts, load)
                saved = json.loads(path.read_text())
                saved[STEADY] = steady_throughput(saved)
                if (answers := answers or saved.get("answers")) != saved.get("answers"):
                    sys.exit(f"error: {path}: other answers than the first run's")
                runs[title].append({x: saved[x] for x in FIGURES if x in saved})
                fits[title].append(fit(*read_server_logs([log], ranks)))
                bar.update()
    return runs, fits


def main() -> None:
    """Measures, calibrates, simulates and writes the JSON file."""
    args = options()
    args.folder = args.folder.resolve()
    args.folder.mkdir(parents=True, exist_ok=True)
    ranks = args.data_parallel_size
    how = "replay" if args.replay else "sessions" if args.sessions else "dp"
    name = f"wall_clock_{how}{ranks}"
    rate, load, asked = None, all_slots(ranks), []
    variants = OF_SESSIONS if args.sessions else VARIANTS
    if args.replay:
        load, rate = replay(args)
    elif args.sessions:
        asked = sessions.shorter(SESSIONS, ranks * SESSIONS_OF_A_RANK)
    runs, fits = measure(args, name, variants, load, asked)
    limits, sent = (
        RankLimits(ranks, SLOTS, MAX_TOKENS),
        args.folder / f"{name}-0-0.json",
    )
    traffic = ClientTraffic(self_timed=args.replay)
    if asked:
        limits = replace(limits, kv_blocks=sessions.KV_BLOCKS)
        sent = args.folder / f"{name}.jsonl"
        sent.write_text("".join(f"{json.dumps(each)}\n" for each in asked))
    elif not args.replay:
        traffic = ClientTraffic(max_concurrency=ranks * SLOTS)
    costs = [asdict(found.cost) for found in fits["off"]]
    mean = {name: statistics.fmean(cost[name] for cost in costs) for name in costs[0]}
    scenario = Scenario(limits, CostModel(**mean), Workload(None, trace=sent), traffic)
    document = {
        "command": f"python bench/wall_clock.py MODEL --data-parallel-size {ranks} "
        f"{'' if asked else f'--num-prompts {args.num_prompts} '}"
        f"--repeats {args.repeats}"
        f"{f' --{how}' * (how != 'dp')}",
        "versions": versions(),
        "cores": os.cpu_count(),
        "requests": sum(len(each["requests"]) for each in asked) or args.num_prompts,
        "rate": rate,
        "repeats": args.repeats,
        "device": DEVICE,
        "load_average": list(os.getloadavg()),
        "calibration": {
            title: [asdict(found) for found in of_variant]
            for title, of_variant in fits.items()
        },
        "measured": {title: _summary(found) for title, found in runs.items()},
        "simulated": {title: _simulated(scenario, variants[title]) for title in runs},
        "runs": runs,
    }
    write_json(RESULTS / f"{name}.json", document)
    print(f"Wrote {RESULTS}/{name}.json")


def _simulated(scenario: Scenario, variant: Variant) -> dict[str, dict[str, float]]:
    balancer = {"vllm": "0.23", None: AS_SERVED}.get(variant.dispatch, BY_PREFIXES)
    servers = scenario.limits.ranks if variant.api_server_per_rank else 1
    scenario = replace(
        scenario,
        load_balancer=BY_SESSION if variant.names_ranks else balancer,
        frontend=Frontend(api_servers=servers),
    )
    found = []
    for seed in SEEDS:
        run = simulate(scenario, variant.policy, seed)
        figures = asdict(measure_run(run))
        cached = sum(request.cached or 0 for request in run.requests)
        prompts = sum(request.prompt_len for request in run.requests)
        found.append({**figures, "computed_share": 1 - cached / prompts})
    return _summary(found)


def _summary(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and spread (greatest less least) of each figure."""
    names = [name for name in FIGURES if name in runs[0]]
    columns = {name: [run[name] for run in runs] for name in names}
    return {
        "mean": {name: statistics.fmean(values) for name, values in columns.items()},
        "spread": {name: max(v) - min(v) for name, v in columns.items()},
    }


if __name__ == "__main__":
    main()
