"""Measures policies on real ranks of this machine, and predicts each cell.

::

    PYTHONPATH=tools .venv/bin/python bench/real.py [--minutes N] [--ranks N]

Nothing is emulated: ranks on CPU cores serve a mixture of experts of hidden size 1,024,
or 768 where cores are slow. Each cell is a trial of four policies. A turn of one takes
a minute and a half, and all cells in three rounds six hours of two idle cores; what
comes first in `cells` is run first. Turns that have ended are kept in build/real, by
the sources that they depend on: stop it whenever you like, and run it again to go on.
What is there then is in bench/results, in a file for each machine, and in the tables,
which say what was not run. In the same cells the simulator predicts the ratios, with
the costs that the trial found: once for all turns, and once with each turn's own.
"""

import argparse
import csv
import hashlib
import json
import math
import random
import re
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

import tables
from balance_tools.demo import ranks
from balance_tools.demo.ranks import CLIENTS, DENSE, LAYERS, Load, Served
from balance_tools.distribution import Choice
from balance_tools.environment.reference import make_env
from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.wheel.build import build_wheel

ROOT = Path(__file__).resolve().parents[1]
TRACES, RESULTS = ROOT / "bench" / "traces", ROOT / "bench" / "results"
MEASURED = (
    "vllm/v1/core/sched/balance",
    "vllm_balance/core",
    "vllm_balance/reference",
)
"""Sources without which turns would have taken another time."""
POLICIES = ("off", "cap", "align", "adaptive")
ROUNDS = 3
FIGURES = ("mean_e2el_ms", "steady_output_throughput", "output_throughput")
FIGURES += ("mean_tpot_ms", "median_ttft_ms", "p99_ttft_ms")


class Window(NamedTuple):
    """Consecutive requests of a trace, whose lengths are divided."""

    file: str
    first: int
    divisor: int
    """Of prompts and answers: a core is slower than an accelerator by more. The text
    of a prompt encodes to more tokens than it was made of, see `write_sent`."""


DRAWN = "80–720 → 10–86"
WINDOWS = {
    "Azure code": Window("azure_2023_code.csv", 1500, 4),
    "Azure conv": Window("azure_2023_conv.csv", 3000, 4),
    "Mooncake": Window("mooncake_conversation.jsonl", 700, 32),
}
PER_RANK = {DRAWN: 40, "Azure code": 25, "Azure conv": 20, "Mooncake": 20}
"""Requests of a turn."""
CHUNK, MOONCAKE_CHUNK, MOONCAKE_SECONDS = 16, 512, 3.0
"""Tokens of a hash id here and there, and how exact its times are."""
TOGETHER_S = 2.0
"""Within which clients begin, where each sends its next request after an answer."""
DRAFTS = 3
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 4}


class Cell(NamedTuple):
    """One place of the table."""

    of: str = DRAWN
    """Lengths: drawn, or of a trace."""
    load: float | None = None
    """Share of what `off` serves with all slots in use; None for all slots in use."""
    asynchronous: bool = False
    dense_layers: int = DENSE
    drafts: int = 0

    @property
    def folder(self) -> str:
        """Its name where turns are kept."""
        of = "drawn" if self.of == DRAWN else self.of.replace(" ", "-").lower()
        load = "all" if self.load is None else f"{100 * self.load:.0f}"
        scheduling = "async" if self.asynchronous else "sync"
        return f"{of}-{load}-{scheduling}-dense{self.dense_layers}-{self.drafts}drafts"


def cells() -> Iterator[Cell]:
    """All, the most telling first."""
    yield Cell(asynchronous=True)
    yield Cell()
    yield Cell(dense_layers=0, asynchronous=True)
    for load in (None, 0.9):
        for of in ("Azure conv", "Azure code", "Mooncake"):
            yield Cell(of, load, asynchronous=True)
    yield Cell(dense_layers=LAYERS - 1, asynchronous=True)
    yield Cell(drafts=DRAFTS)
    for dense_layers in (0, LAYERS - 1):
        yield Cell(dense_layers=dense_layers)
    for load in (None, 0.9):
        for of in ("Azure conv", "Azure code", "Mooncake"):
            yield Cell(of, load)


def pieces(every: list[Cell]) -> list[tuple[Cell, int]]:
    """Cells with the rounds that they are to have: one of all, then all of each."""
    return [(cell, rounds) for rounds in (1, ROUNDS) for cell in every]


# ---- Requests of a trace


class Row(NamedTuple):
    """A request of a trace, with its own lengths."""

    time: float
    prompt: int
    answer: int
    hash_ids: list[int]


def rows_of(window: Window, count: int) -> list[Row]:
    """The requests of a window; those of Azure have nothing in common."""
    text = (TRACES / window.file).read_text(encoding="utf-8").splitlines()
    if window.file.endswith(".csv"):
        found = [
            Row(
                datetime.fromisoformat(row["TIMESTAMP"][:26]).timestamp(),
                int(row["ContextTokens"]),
                int(row["GeneratedTokens"]),
                [],
            )
            for row in csv.DictReader(text)
        ][window.first : window.first + count]
        return [
            row._replace(hash_ids=list(range(1000 * number, 1000 * (number + 1))))
            for number, row in enumerate(found)
        ]
    spread = random.Random(0)  # its times are whole multiples
    names = "input_length", "output_length", "hash_ids"
    lines = map(json.loads, text[window.first : window.first + count])
    return sorted(
        Row(
            row["timestamp"] / 1e3 + MOONCAKE_SECONDS * spread.random(),
            *(row[name] for name in names),
        )
        for row in lines
    )


def write_trace(path: Path, window: Window, count: int, rate: float) -> None:
    """A file for `timed_trace`: divided lengths, and times of so many per second."""
    rows = rows_of(window, count)
    begin, end = rows[0].time, rows[-1].time
    slower = (count - 1) / rate / (end - begin)
    lines = []
    for row in rows:
        prompt = max(1, row.prompt // window.divisor)
        line = {
            "timestamp": round((row.time - begin) * slower, 4),
            "input_length": prompt,
            "output_length": max(2, row.answer // window.divisor),
            "hash_ids": row.hash_ids[: math.ceil(prompt / CHUNK)],
        }
        lines.append(json.dumps(line) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def write_sent(path: Path, trace: Path, saved: Mapping[str, Any]) -> None:
    """The trace as a turn has sent it: the server counts more tokens in each prompt.

    vLLM's client makes text of random tokens, and other tokens are made of the text.
    """
    rows = map(json.loads, trace.read_text(encoding="utf-8").splitlines())
    lines = []
    for row, prompt, answer in zip(
        rows, saved["input_lens"], saved["output_lens"], strict=True
    ):
        ids, chunks = row["hash_ids"], math.ceil(prompt / CHUNK)
        each = math.ceil(chunks / len(ids))
        longer = [each * number + part for number in ids for part in range(each)]
        sent = {"input_length": prompt, "output_length": answer}
        lines.append(json.dumps({**row, **sent, "hash_ids": longer[:chunks]}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")


def refuse_other_times(folder: Path, clients: int) -> None:
    """Look whether the requests of each turn were sent as slots became free.

    Raises:
        ToolError: the clients did not begin together.
    """
    for path in results_in(folder):
        times = json.loads(path.read_text(encoding="utf-8"))["start_times"]
        late = sorted(times)[clients - 1] - min(times)
        if late > TOGETHER_S:
            raise ToolError(
                f"{path}: expected {clients} requests within {TOGETHER_S:g} s of the "
                f"first, found the last of them {late:.1f} s later: they were sent at "
                "other times than the cell says; delete it when that is fixed"
            )


def served_rate(folder: Path, clients: int) -> float:
    """Requests per second of `off` with all slots in use.

    Behind the first ones of the clients, each is sent when another has ended.
    """
    rates = []
    for path in sorted(folder.glob("turns/*-off.json")):
        sent = json.loads(path.read_text(encoding="utf-8"))["start_times"]
        rates.append((len(sent) - clients) / (max(sent) - min(sent)))
    return statistics.fmean(rates)


# ---- Running


class Bench:
    """Runs cells, and keeps their turns."""

    def __init__(
        self, python: Path, folder: Path, rank_count: int, servers: int, minutes: float
    ) -> None:
        self.python, self.folder = python, folder
        self.ranks, self.servers = rank_count, servers
        self._end = time.monotonic() + 60 * minutes

    @property
    def is_over(self) -> bool:
        """Whether nothing more is to begin."""
        return time.monotonic() >= self._end

    def path(self, cell: Cell) -> Path:
        """Of the trial of a cell."""
        return self.folder / cell.folder

    def served(self, cell: Cell) -> Served:
        """How a cell is served."""
        more = ("--speculative-config", json.dumps(NGRAM)) if cell.drafts else ()
        return Served(self.ranks, cell.asynchronous, self.servers, more)

    def load(self, cell: Cell) -> Load:
        """What is sent in a cell."""
        prompts, clients = PER_RANK[cell.of] * self.ranks, CLIENTS * self.ranks
        if cell.of == DRAWN:
            return ranks.drawn(prompts, clients, 400, 48, 0.8)
        rate, trace = 1.0, self.path(cell).with_suffix(".jsonl")
        if cell.load is not None:
            full = self.path(cell._replace(load=None))
            rate = cell.load * served_rate(full, clients)
        if not trace.exists():  # turns of later rounds get the same
            write_trace(trace, WINDOWS[cell.of], prompts, rate)
        return ranks.replayed(
            trace, prompts, CHUNK, clients if cell.load is None else None
        )

    def make(self, cell: Cell, rounds: int, done: Callable[[], object]) -> bool:
        """Run what is missing of a cell; False if the time was over before."""
        path, turns = self.path(cell), rounds * len(POLICIES)
        path.parent.mkdir(parents=True, exist_ok=True)
        seen = len(results_in(path))

        def enough() -> bool:
            nonlocal seen
            before, seen = seen, len(results_in(path))
            for _ in range(seen - before):
                done()
            return before < seen < turns and self.is_over

        if self.is_over or (cell.load and not self.rounds(cell._replace(load=None))):
            return False
        folder = self.folder / "models" / f"dense{cell.dense_layers}"
        model = ranks.make_model(self.python, folder, cell.dense_layers)
        load, served = self.load(cell), self.served(cell)
        made = ranks.run_trial(
            *(self.python, path, model, load, served, POLICIES, rounds, False, enough)
        )
        enough()
        if made:
            if cell.load is None:
                refuse_other_times(path, CLIENTS * self.ranks)
            drafts = self._accepted(cell)
            if cell.of in WINDOWS:
                load = self._as_sent(cell)
            for turn in write_costs_of_turns(path):
                policy = turn.name.partition("-")[2]
                ranks.predict(self.python, turn, load, served, [policy], drafts)
            ranks.predict(self.python, path, load, served, POLICIES, drafts)
        return made

    def _as_sent(self, cell: Cell) -> Load:
        """The load of a trace, with the lengths that the server has counted."""
        trace, sent = (self.path(cell).with_suffix(f".{x}jsonl") for x in ("", "sent."))
        (first, *_) = results_in(self.path(cell))
        saved = json.loads(first.read_text(encoding="utf-8"))
        write_sent(sent, trace, saved)
        prompts, clients = PER_RANK[cell.of] * self.ranks, CLIENTS * self.ranks
        return ranks.replayed(
            sent, prompts, CHUNK, clients if cell.load is None else None
        )

    def _accepted(self, cell: Cell) -> list[str]:
        """Which drafts were accepted, in options of the simulator, which drafts always.

        Upstream counts the steps in which a request had drafts.
        """
        if not cell.drafts:
            return []
        rates = []
        for path in results_in(self.path(cell)):
            saved = json.loads(path.read_text(encoding="utf-8"))
            accepted = saved["spec_decode_accepted_tokens"]
            steps = max(1, saved["total_output_tokens"] - accepted)
            had = saved["spec_decode_num_drafts"] / steps
            by_place = saved["spec_decode_per_position_acceptance_rates"]
            rates.append([had * each for each in by_place or [0.0] * cell.drafts])
        means = (statistics.fmean(each) for each in zip(*rates, strict=True))
        text = ",".join(f"{min(1.0, mean):.3f}" for mean in means)
        options = ["--num-speculative-tokens", str(cell.drafts)]
        return [*options, "--synthetic-acceptance-rates", text]

    def rounds(self, cell: Cell) -> int:
        """Those that its report has; 0 before."""
        if not (self.path(cell) / "predicted.json").exists():
            return 0
        runs = ranks.report_of(self.path(cell))["policies"]["off"]["runs"]
        return len(runs["mean_e2el_ms"])

    def summary(self, cell: Cell) -> dict[str, Any]:
        """What the result says of a cell."""
        labels = {**cell._asdict(), "divided by": 1, "rounds": self.rounds(cell)}
        if cell.of in WINDOWS:
            labels["divided by"] = WINDOWS[cell.of].divisor
        if not labels["rounds"]:
            return labels
        report, path = ranks.report_of(self.path(cell)), self.path(cell)
        (first, *_) = results_in(path)
        saved = json.loads(first.read_text(encoding="utf-8"))
        for what, total in (("prompt", "input"), ("answer", "output")):
            labels[what] = round(saved[f"total_{total}_tokens"] / saved["completed"])
        # Not that of the report, which may be made again.
        began = datetime.strptime(saved["date"], "%Y%m%d-%H%M%S")
        labels["date"] = began.date().isoformat()
        names = "requests", "exchange_us", "learned_seconds", "decode_seconds"
        names += "prompt_seconds", "slowness", "waiting_share"
        policies = {}
        for name, found in report["policies"].items():
            runs = {figure: found["runs"][figure] for figure in FIGURES}
            policies[name] = {
                figure: [round(each, 2) for each in values]
                for figure, values in runs.items()
            }
            if ratio := found.get("ratios", {}).get("mean_e2el_ms"):
                ends = ("mean", "low", "high")
                policies[name]["ratio"] = [round(ratio[end], 4) for end in ends]
        return {
            **labels,
            **{name: rounded(report[name]) for name in names},
            "policies": policies,
            "predicted": rounded(over_off([ranks.predicted_in(path)])),
            "predicted by turn": rounded(over_off(predicted_by_turn(path))),
        }


def rounded(value: Any) -> Any:
    """To a millionth, wherever there are fractions."""
    if isinstance(value, dict):
        return {name: rounded(each) for name, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return round(value, 6) if isinstance(value, float) else value


def results_in(folder: Path) -> list[Path]:
    """Of the turns of a trial that have ended, and whose server was asked."""
    found = sorted(folder.glob("turns/*.json"))
    return [path for path in found if '"trial": null' not in path.read_text("utf-8")]


TIMES = "learned_seconds", "decode_seconds", "prompt_seconds"
"""Costs in a report."""


def write_costs_of_turns(path: Path) -> list[Path]:
    """Write the report of a trial anew for each turn, with the costs of that turn.

    A machine is slower in one turn than in the next, whatever the policy, and at the
    times of a trace that makes a queue or none.

    Args:
        path: of the trial.

    Returns:
        The folders that have the reports, in the order of the turns.
    """
    report, folders = ranks.report_of(path), []
    for number, turn in enumerate(results_in(path)):
        policy = turn.stem.partition("-")[2]
        slower = report["slowness"][policy][number // len(POLICIES)] or 1.0
        costs = {
            name: report[name] and {x: slower * s for x, s in report[name].items()}
            for name in TIMES
        }
        folders.append(path / "predicted" / turn.stem)
        target = folders[-1] / "report" / "report.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(json.dumps(report | costs), encoding="utf-8")
    return folders


def predicted_by_turn(path: Path) -> list[dict[str, float]]:
    """Of each round the time with each policy, with the costs of that turn."""
    found: list[dict[str, float]] = []
    for number, turn in enumerate(results_in(path)):
        if number % len(POLICIES) == 0:
            found.append({})
        found[-1] |= ranks.predicted_in(path / "predicted" / turn.stem)
    return found


def over_off(rounds: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Times over those with `off`; the geometric mean of the rounds, as a trial's."""
    return {
        policy: statistics.geometric_mean([e[policy] / e["off"] for e in rounds])
        for policy in POLICIES
    }


def result_of(bench: Bench) -> Path:
    """The file of this machine, with as many ranks and API servers."""
    name = re.sub(r"\W+", "-", ranks.machine().lower())
    return RESULTS / f"real-{name}-{bench.ranks}-ranks-{bench.servers}-servers.json"


def write(bench: Bench, every: list[Cell]) -> int:
    """Write the result as it is now, and fill the tables; how many cells it has."""
    found = [bench.summary(cell) for cell in every]
    known = [cell for cell in every if bench.rounds(cell)]
    if not known:
        return 0
    versions = ranks.report_of(bench.path(known[0]))["versions"]
    head = {
        "machine": ranks.machine(),
        "made": date.today().isoformat(),
        "ranks": bench.ranks,
        "API servers": bench.servers,
        "layers": LAYERS,
        "hidden size": ranks.hidden_size(),
        "step tokens": ranks.STEP_TOKENS,
        "versions": versions,
    }
    lines = ",\n  ".join(json.dumps(cell, ensure_ascii=False) for cell in found)
    text = json.dumps(head, indent=1, ensure_ascii=False)[:-2]
    path = result_of(bench)
    path.write_text(f'{text},\n "cells": [\n  {lines}\n ]\n}}\n', encoding="utf-8")
    tables.fill(ROOT)
    return len(known)


def sources() -> str:
    """Twelve digits, others when balance scheduling or what computes is."""
    paths = sorted(path for each in MEASURED for path in (ROOT / each).rglob("*.py"))
    return hashlib.sha256(b"".join(map(Path.read_bytes, paths))).hexdigest()[:12]


def main() -> int:
    """Run what is missing, as long as there is time."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--minutes", type=float, default=math.inf, help="begin no turn after these")
    add("--ranks", type=int, default=ranks.rank_count(), help="default: one per core")
    add("--api-servers", type=int, default=1, help="default: one")
    options = parser.parse_args()
    # As an error, so that the trial ends with this.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    paths = Paths(ROOT)
    model = f"{LAYERS}x{ranks.hidden_size()}"
    kept = f"{sources()}-{model}-{options.ranks}x{options.api_servers}"
    try:
        python = make_env(paths, build_wheel(paths, Choice(), paths.dist))
        bench = Bench(
            *(python / "bin" / "python", paths.build / "real" / kept),
            *(options.ranks, options.api_servers, options.minutes),
        )
        every = list(cells())
        total = len(every) * ROUNDS * len(POLICIES)
        done = sum(len(results_in(bench.path(cell))) for cell in every)
        with tqdm(total=total, initial=done, unit="turn") as bar:
            for cell, rounds in pieces(every):
                if bench.rounds(cell) >= rounds:
                    continue
                bar.set_description(cell.folder)
                if bench.make(cell, rounds, bar.update):
                    write(bench, every)
                if bench.is_over:
                    break
        known = write(bench, every)
        print(f"{result_of(bench)}: has {known} of {len(every)} cells")
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
