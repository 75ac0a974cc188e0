"""The same workload through real servers on the emulated device, policy by policy.

Each policy is served and measured with ``vllm bench serve`` several times, in turn.
Afterwards the step time is calibrated from the logs of "off" and the same requests are
simulated. Runs whose result is in the folder already are not repeated. Run it with the
interpreter of an environment in which the reference wheel is installed; the model is
any mixture-of-experts model, of which only the configuration and the tokenizer are
used::

    python bench/wall_clock.py MODEL --data-parallel-size 4
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

from tqdm import tqdm
from vllm.benchmarks.dp_balance.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.cost import CostModel
from vllm.benchmarks.dp_balance.engine import RankLimits
from vllm.benchmarks.dp_balance.fit import Fit, fit
from vllm.benchmarks.dp_balance.results import versions, write_json
from vllm.benchmarks.dp_balance.scenario import (
    Scenario,
    Workload,
    simulate_and_measure,
)
from vllm.benchmarks.dp_balance.steps import read_server_logs

sys.path.append(str(Path(__file__).parents[1] / "tools"))

# The demo is this benchmark with four ranks and two policies, once.
from balance_tools.serving.demo_load import DEVICE, SLOTS, STEADY, steady_throughput
from balance_tools.serving.server import Server

RESULTS = Path(__file__).parent / "results"
POLICIES = ("off", "cap", "align", "adaptive")
MAX_TOKENS = 512
INPUT, OUTPUT, RANGE = 400, 60, 0.4
"""Tokens, and by which share of them the lengths vary."""
START_S = 300
SEEDS = range(5)
"""Of the simulation; the lengths are those that were sent."""
FIGURES = (
    "output_throughput",
    STEADY,
    "mean_tpot_ms",
    "mean_ttft_ms",
    "mean_e2el_ms",
)


def server(model: str, ranks: int, policy: str, time_scale: float, log: Path) -> Server:
    """A server on the emulated device, a context manager."""
    device = {"emulated_device": {**DEVICE, "time_scale": time_scale}}
    folder = Path(model)  # or a name that the hub's cache has
    return Server(
        *(log.parent, folder.resolve() if folder.exists() else folder),
        *("--data-parallel-size", str(ranks), "--data-parallel-balance", policy),
        *("--max-num-seqs", str(SLOTS), "--max-num-batched-tokens", str(MAX_TOKENS)),
        *("--max-model-len", "2048", "--enforce-eager", "--no-async-scheduling"),
        *("--no-enable-prefix-caching", "--enable-logging-iteration-details"),
        *("--additional-config", json.dumps(device)),
        name=log.stem,
        start_limit_s=START_S,
    )


def bench(model: str, url: str, prompts: int, concurrency: int, result: Path) -> None:
    """Runs `vllm bench serve`; the result has the lengths of all requests."""
    command = [
        *(sys.executable, "-m", "vllm.entrypoints.cli.main", "bench", "serve"),
        *("--backend", "openai", "--base-url", url, "--model", model),
        *("--dataset-name", "random", "--random-input-len", str(INPUT)),
        *("--random-output-len", str(OUTPUT), "--random-range-ratio", str(RANGE)),
        *("--num-prompts", str(prompts), "--max-concurrency", str(concurrency)),
        *("--percentile-metrics", "ttft,tpot,itl,e2el", "--disable-tqdm"),
        *("--save-result", "--save-detailed", "--result-dir", str(result.parent)),
        *("--result-filename", result.name),
    ]
    with result.with_suffix(".log").open("wb") as log:
        subprocess.run(command, check=True, stdout=log, stderr=subprocess.STDOUT)


def options() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--data-parallel-size", type=int, default=4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--num-prompts", type=int, default=160)
    parser.add_argument(
        "--time-scale",
        type=float,
        default=1.0,
        help="slow the device down by this factor, where the processors cannot keep up",
    )
    parser.add_argument("--policy", nargs="+", default=list(POLICIES))
    parser.add_argument("--folder", type=Path, default=Path("build/wall_clock"))
    return parser.parse_args()


def measure(
    args: argparse.Namespace,
) -> tuple[dict[str, list[dict[str, float]]], dict[str, list[Fit]]]:
    """Serves and measures what is missing; by policy, the figures and the fits."""
    ranks = args.data_parallel_size
    runs: dict[str, list[dict[str, float]]] = {policy: [] for policy in args.policy}
    fits: dict[str, list[Fit]] = {policy: [] for policy in args.policy}
    total = args.repeats * len(args.policy)
    with tqdm(desc=f"DP {ranks}", total=total, unit="run", disable=None) as bar:
        for repeat in range(args.repeats):
            for policy in args.policy:
                path = args.folder / f"dp{ranks}-{policy}-{repeat}.json"
                log = path.with_suffix(".server.log")
                if not path.exists():
                    with server(args.model, ranks, policy, args.time_scale, log) as it:
                        bench(args.model, it.url, args.num_prompts, ranks * SLOTS, path)
                saved = json.loads(path.read_text())
                saved[STEADY] = steady_throughput(saved)
                runs[policy].append({name: saved[name] for name in FIGURES})
                fits[policy].append(fit(*read_server_logs([log], ranks)))
                bar.update()
    return runs, fits


def main() -> None:
    """Measures, calibrates, simulates and writes the JSON file."""
    args = options()
    args.folder.mkdir(parents=True, exist_ok=True)
    ranks = args.data_parallel_size
    runs, fits = measure(args)
    scenario = Scenario(
        RankLimits(ranks, SLOTS, MAX_TOKENS),
        _mean_cost(fits["off"]),
        Workload(None, trace=args.folder / f"dp{ranks}-off-0.json"),
        ClientTraffic(max_concurrency=ranks * SLOTS),
    )
    document = {
        "command": "python bench/wall_clock.py MODEL --data-parallel-size "
        f"{ranks} --num-prompts {args.num_prompts} --repeats {args.repeats} "
        f"--time-scale {args.time_scale:g}",
        "versions": versions(),
        "cores": os.cpu_count(),
        "device": {**DEVICE, "time_scale": args.time_scale},
        "load_average": list(os.getloadavg()),
        "calibration": {
            policy: [asdict(found) for found in of_policy]
            for policy, of_policy in fits.items()
        },
        "measured": {policy: _summary(found) for policy, found in runs.items()},
        "simulated": {policy: _simulated(scenario, policy) for policy in runs},
        # The host's own time differs from server to server on a busy machine.
        "simulated_with_own_host_time": {
            policy: _simulated(replace(scenario, cost=_mean_cost(found)), policy)
            for policy, found in fits.items()
        },
        "runs": runs,
    }
    write_json(RESULTS / f"wall_clock_dp{ranks}.json", document)
    print(f"Wrote {RESULTS}/wall_clock_dp{ranks}.json")


def _mean_cost(fits: list[Fit]) -> CostModel:
    costs = [asdict(found.cost) for found in fits]
    return CostModel(**{k: statistics.fmean(c[k] for c in costs) for k in costs[0]})


def _simulated(scenario: Scenario, policy: str) -> dict[str, dict[str, float]]:
    return _summary([asdict(simulate_and_measure(scenario, policy, s)) for s in SEEDS])


def _summary(runs: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Mean and spread (greatest less least) of each figure."""
    columns = {name: [run[name] for run in runs] for name in FIGURES}
    return {
        "mean": {name: statistics.fmean(values) for name, values in columns.items()},
        "spread": {name: max(v) - min(v) for name, v in columns.items()},
    }


if __name__ == "__main__":
    main()
