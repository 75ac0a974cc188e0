"""Measures policies on real ranks of this machine, and predicts each cell.

::

    PYTHONPATH=tools:. .venv/bin/python bench/real.py [--minutes N] [--cells REGEX]
    PYTHONPATH=tools:. .venv/bin/python bench/real.py --against CHECKOUT

Nothing is emulated: ranks on CPU cores serve a mixture of experts of hidden size 1,024,
or 768 where cores are slow. Each cell is a trial of four policies on one server, under
one load; all cells take about four hours of two idle cores. What has been
measured is in bench/results, in a file for each machine, and in the tables, which say
what was not run: stop it whenever you like, and run it again to go on. In the same
cells the simulator predicts the ratios, with the costs that `adaptive` has learned, and
with the load sent eight times, so that beginning and end hardly count.

The second command compares the trial itself with that of an older checkout, in which
`make env` was run: five pairs of trials of `off` and `adaptive`, as long as each other,
and how wide their intervals are.
"""

import argparse
import csv
import json
import math
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import Any, NamedTuple

import tables
from balance_tools.demo import ranks
from balance_tools.demo.ranks import CLIENTS, DENSE, LAYERS, Served
from balance_tools.distribution import Choice
from balance_tools.environment.reference import make_env
from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.paths import Paths
from balance_tools.wheel.build import build_wheel
from vllm_balance.code_hash import code_hash

ROOT = Path(__file__).resolve().parents[1]
TRACES, RESULTS = ROOT / "bench" / "traces", ROOT / "bench" / "results"
MEASURED = "vllm/v1/core/sched/balance", "vllm_balance/core"
"""The sources that decide; what computes beside them is in the recorded versions."""
POLICIES = ("off", "cap", "align", "adaptive")
MINUTES = 10.0
"""Duration of a cell."""


class Window(NamedTuple):
    """Consecutive requests of a trace, whose lengths are divided."""

    file: str
    first: int
    divisor: int
    """By which prompt and answer tokens are divided, as a core is slower than an
    accelerator. The text of a prompt has more tokens in the end: see `write_sent`."""


PROMPT, ANSWER, SPREAD = 400, 48, 0.8
LENGTHS = PROMPT, ANSWER, SPREAD
"""Means of drawn lengths, and how far they are uniform on each side."""
DRAWN = "80–720 → 10–86"
WINDOWS = {
    "Azure code": Window("azure_2023_code.csv", 1500, 4),
    "Azure conv": Window("azure_2023_conv.csv", 3000, 4),
    "Mooncake": Window("mooncake_conversation.jsonl", 700, 32),
}
REQUESTS, PASSES = 256, 8
"""Requests of a load, which are sent again when all were, and how often in a run of the
simulator: what it measures of one pass is mostly how ranks fill up."""
SEEDS = 2
"""Runs of the simulator with each policy."""
CHUNK, MOONCAKE_CHUNK, MOONCAKE_SECONDS = 16, 512, 3.0
"""Tokens of a hash id here and in Mooncake's trace, whose times are that coarse."""
OPEN_LOAD = 0.7
"""At 0.9 one burst in some minutes outweighs a policy."""
DRAFTS = 3
NGRAM = {"method": "ngram", "num_speculative_tokens": DRAFTS, "prompt_lookup_max": 4}


class Cell(NamedTuple):
    """A cell of the table: a load, and how it is served."""

    of: str = DRAWN
    """Where the lengths come from: drawn, or a trace."""
    load: float | None = None
    """Share of what `off` serves with all slots in use; None for all slots in use."""
    asynchronous: bool = False
    dense_layers: int = DENSE
    drafts: int = 0

    @property
    def folder(self) -> str:
        of = "drawn" if self.of == DRAWN else self.of.replace(" ", "-").lower()
        load = "all" if self.load is None else f"{100 * self.load:.0f}"
        scheduling = "async" if self.asynchronous else "sync"
        return f"{of}-{load}-{scheduling}-dense{self.dense_layers}-{self.drafts}drafts"


def cells() -> Iterator[Cell]:
    """All cells, the most telling first."""
    yield Cell(asynchronous=True)
    yield Cell()
    yield Cell(dense_layers=0, asynchronous=True)
    for load in (None, OPEN_LOAD):
        for of in ("Azure conv", "Azure code", "Mooncake"):
            yield Cell(of, load, asynchronous=True)
    yield Cell(dense_layers=LAYERS - 1, asynchronous=True)
    yield Cell(drafts=DRAFTS)
    for dense_layers in (0, LAYERS - 1):
        yield Cell(dense_layers=dense_layers)
    for load in (None, OPEN_LOAD):
        for of in ("Azure conv", "Azure code", "Mooncake"):
            yield Cell(of, load)


# ---- Requests of a trace


class Row(NamedTuple):
    """A request of a trace, with its own lengths."""

    time: float
    prompt: int
    answer: int
    hash_ids: list[int]


def rows_of(window: Window, count: int) -> list[Row]:
    """The requests of a window; those of Azure share no prefix."""
    text = (TRACES / window.file).read_text(encoding="utf-8").splitlines()
    if window.file.endswith(".csv"):
        requests = [
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
            for number, row in enumerate(requests)
        ]
    spread = random.Random(0)  # spreads the coarse times
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
    """Writes a file for `timed_trace`: divided lengths, `rate` requests per second."""
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


def write_sent(path: Path, trace: Path, lengths: Mapping[int, tuple[int, int]]) -> int:
    """Writes the trace as it was sent, `PASSES` times; returns the number of requests.

    The server counts more tokens in each prompt, because vLLM's client sends random
    tokens as text, which is encoded to others. As in a trial, passes follow each other
    as requests do on average, and share no prefix.

    Args:
        path: the file to write.
        trace: the trace that was given to the client.
        lengths: tokens of prompt and answer by the number of the request; requests
            that are not in it are left out.
    """
    rows = [json.loads(line) for line in trace.read_text("utf-8").splitlines()]
    numbers = sorted(lengths)
    period = rows[numbers[-1]]["timestamp"] * (1 + 1 / len(numbers))
    lines = []
    for sent_before in range(PASSES):
        first = sent_before * 10**9
        for number in numbers:
            row, (prompt, answer) = rows[number], lengths[number]
            ids, chunks = row["hash_ids"], math.ceil(prompt / CHUNK)
            count = math.ceil(chunks / len(ids))
            longer = [first + count * x + part for x in ids for part in range(count)]
            sent = {"timestamp": row["timestamp"] + sent_before * period}
            sent |= {"input_length": prompt, "output_length": answer}
            lines.append(json.dumps({**sent, "hash_ids": longer[:chunks]}) + "\n")
    path.write_text("".join(lines), encoding="utf-8")
    return len(lines)


def uniform(mean: int) -> str:
    return f"uniform:{round(mean * (1 - SPREAD))}:{round(mean * (1 + SPREAD))}"


def replayed(trace: Path, clients: int | None) -> list[str]:
    """Options of a trial for a trace, sent by clients, else at the trace's times."""
    options = ["--dataset-name", "timed_trace", "--dataset-path", str(trace.resolve())]
    options += ["--timed-trace-chunk-hash-size", str(CHUNK)]
    options += ["--num-prompts", str(REQUESTS), "--temperature", "0"]
    if clients is None:
        return [*options, "--self-timed"]
    # Without it vLLM's client keeps the times of a trace, also with clients.
    return [*options, "--no-self-timed", "--max-concurrency", str(clients)]


# ---- Running


class Bench:
    """Runs cells, and keeps their results."""

    def __init__(
        self, python: Path, folder: Path, rank_count: int, servers: int, minutes: float
    ) -> None:
        self.python, self.folder = python, folder
        self.ranks, self.servers, self.minutes = rank_count, servers, minutes
        self.clients = CLIENTS * rank_count

    @property
    def result(self) -> Path:
        """The file of this machine, with as many ranks and API servers."""
        name = re.sub(r"\W+", "-", ranks.machine().lower())
        return RESULTS / f"real-{name}-{self.ranks}-ranks-{self.servers}-servers.json"

    def measured(self) -> dict[str, dict[str, Any]]:
        """By name the cells that were measured with the current sources."""
        if not self.result.exists():
            return {}
        head = json.loads(self.result.read_text(encoding="utf-8"))
        if head.get("sources") != sources():
            return {}
        return {cell["name"]: cell for cell in head["cells"] if cell.get("blocks")}

    def served(self, cell: Cell) -> Served:
        options = ("--speculative-config", json.dumps(NGRAM)) if cell.drafts else ()
        return Served(self.ranks, cell.asynchronous, self.servers, options)

    def make(self, cell: Cell) -> dict[str, Any] | None:
        """Runs a cell; None if it needs one that was not run."""
        rate, measured = 1.0, self.measured()
        if cell.load is not None:
            full = measured.get(cell._replace(load=None).folder)
            if full is None:
                return None
            rate = cell.load * 1e3 * self.clients / full["policies"]["off"][JUDGED]
        path = self.folder / cell.folder
        remove_tree(path)
        path.mkdir(parents=True)
        clients = self.clients if cell.load is None else None
        load: Sequence[str]
        if cell.of == DRAWN:
            load = ranks.drawn(REQUESTS, self.clients, *LENGTHS)
        else:
            trace = path / "trace.jsonl"
            write_trace(trace, WINDOWS[cell.of], REQUESTS, rate)
            load = replayed(trace, clients)
        models = self.folder / "models" / f"dense{cell.dense_layers}"
        model = ranks.make_model(self.python, models, cell.dense_layers)
        served, minutes = self.served(cell), f"{self.minutes:g}"
        ranks.run_trial(
            *(self.python, path / "trial", model, load, served, POLICIES),
            *(self.minutes, ("--least-minutes", minutes), False),
        )
        answers = json.loads((path / "trial/answers.json").read_text("utf-8"))
        predicted = None
        if not cell.drafts:  # the simulator would have to know which are accepted
            predicted = self.predict(cell, answers)
        return self._summary(cell, answers, predicted)

    def predict(self, cell: Cell, answers: Sequence[Sequence[Any]]) -> dict[str, float]:
        """The simulator's mean latency of each policy over that of `off`.

        Args:
            cell: one of which there is a trial, with `adaptive`, which learned costs.
            answers: the trial's number, prompt and answer tokens of each request.
        """
        path = self.folder / cell.folder
        clients = self.clients if cell.load is None else None
        if cell.of == DRAWN:
            load = ["--input-len", uniform(PROMPT), "--output-len", uniform(ANSWER)]
            count = PASSES * REQUESTS
        else:
            sent = path / "sent.jsonl"
            lengths = {number: tuple(tokens) for number, *tokens, _ in answers}
            count = write_sent(sent, path / "trace.jsonl", lengths)
            load = ["--dataset-path", str(sent.resolve())]
            load += ["--dataset-name", "custom" if clients else "timed_trace"]
            load += ["--timed-trace-chunk-hash-size", str(CHUNK)]
            load += ["--timed-trace-sec-multiplier", "1"]
        if clients:
            load += ["--max-concurrency", str(clients)]
        costs = (path / "trial/report/report.json").resolve()
        saved = path / "predicted.json"
        ranks.run_command(
            self.python,
            path / "simulated",
            [
                *("simulate", "--cost-from", str(costs), "--policy", *POLICIES),
                # The server's, which all policies have.
                *("--load-balancer", "prefix-aware"),
                *(*self.served(cell).shared, *load, "--num-prompts", str(count)),
                *("--num-seeds", str(SEEDS), "--disable-tqdm", "--save-result"),
                *("--result-dir", str(path.resolve())),
                *("--result-filename", saved.name),
            ],
            is_shown=False,
        )
        times = {
            result["policy"]: statistics.fmean(
                x["mean_e2el_ms"] for x in result["runs"]
            )
            for result in json.loads(saved.read_text("utf-8"))["results"]
        }
        return {name: times[name] / times["off"] for name in POLICIES}

    def _summary(
        self,
        cell: Cell,
        answers: Sequence[Sequence[Any]],
        predicted: Mapping[str, float] | None,
    ) -> dict[str, Any]:
        report = ranks.report_of(self.folder / cell.folder / "trial")
        policies = {}
        for name, figures in report["policies"].items():
            policies[name] = dict(figures["mean"])
            if ratio := figures.get("ratios", {}).get(JUDGED):
                policies[name]["ratio"] = [
                    ratio[end] for end in ("mean", "low", "high")
                ]
        divisor = WINDOWS[cell.of].divisor if cell.of in WINDOWS else 1
        names = "date", "blocks", "stretch_seconds", "washout_seconds", "requests"
        names += "exchange_us", "learned_seconds", "carry_over"
        return {
            **{"name": cell.folder, **cell._asdict(), "divided by": divisor},
            "prompt": round(statistics.fmean(answer[1] for answer in answers)),
            "answer": round(statistics.fmean(answer[2] for answer in answers)),
            **{name: rounded(report[name]) for name in names},
            **{"policies": rounded(policies), "predicted": rounded(predicted)},
            "versions": report["versions"],
        }

    def write(self, cell: dict[str, Any]) -> None:
        """Writes the result with one more cell, and fills the tables."""
        measured = {**self.measured(), cell["name"]: cell}
        head = {
            **{"machine": ranks.machine(), "made": date.today().isoformat()},
            **{"ranks": self.ranks, "API servers": self.servers, "layers": LAYERS},
            **{"hidden size": ranks.hidden_size(), "step tokens": ranks.STEP_TOKENS},
            **{"versions": cell["versions"], "sources": sources()},
        }
        rows = [
            measured.get(c.folder, {"name": c.folder, **c._asdict(), **NOT_RUN})
            for c in cells()
        ]
        lines = ",\n  ".join(json.dumps(row, ensure_ascii=False) for row in rows)
        text = json.dumps(head, indent=1, ensure_ascii=False)[:-2]
        text = f'{text},\n "cells": [\n  {lines}\n ]\n}}\n'
        self.result.write_text(text, encoding="utf-8")
        tables.fill(ROOT)


NOT_RUN = {"divided by": 1, "blocks": 0}
JUDGED = "mean_e2el_ms"


def rounded(value: Any) -> Any:
    """The value with all fractions rounded to five digits."""
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    if isinstance(value, list):
        return [rounded(item) for item in value]
    return float(f"{value:.5g}") if isinstance(value, float) else value


# ---- The trial itself

OLD_TRIAL = """
import sys
from pathlib import Path
from balance_tools.demo import ranks
python, folder, model = map(Path, sys.argv[1:])
served = ranks.Served(ranks.rank_count())
clients = ranks.CLIENTS * served.ranks
load = ranks.drawn(32 * served.ranks, clients, 400, 24, 0.8)
ranks.run_trial(
    python, folder, model, load, served, ("off", "adaptive"), 3, is_shown=False
)
"""
"""The demo of 3a48b8ab, three turns of each policy."""
T95_OF_TWO = 4.303
"""Standard errors on each side of a mean of three (Student)."""


def against(bench: Bench, checkout: Path, pairs: int) -> None:
    """Compares the widths of intervals after equal times, and writes them.

    Raises:
        ToolError: the checkout has no environment.
    """
    old = (checkout / "build/env/reference/bin/python").absolute()
    if not old.exists():
        raise ToolError(
            f"{old}: expected the environment of an older checkout, found none; run "
            "`make env` there"
        )
    folder, path = bench.folder / "against", RESULTS / "trial.json"
    remove_tree(folder)
    folder.mkdir(parents=True)
    model = ranks.make_model(bench.python, bench.folder / "models" / "demo")
    served = Served(bench.ranks)
    load = ranks.drawn(REQUESTS, bench.clients, 400, 24, 0.8)
    results: list[dict[str, float]] = []
    minutes = 0.0
    for number in range(pairs):
        pair: dict[str, float] = {}
        for which in ("old", "new") if number % 2 == 0 else ("new", "old"):
            begin, out = time.monotonic(), folder / f"{number}-{which}"
            if which == "old":
                paths = {**os.environ, "PYTHONPATH": str(checkout.absolute() / "tools")}
                command = [sys.executable, "-c", OLD_TRIAL, old, out.absolute(), model]
                subprocess.run([*map(str, command)], env=paths, check=True)
                ratio = ranks.report_of(out)["policies"]["adaptive"]["ratios"][JUDGED]
                half = T95_OF_TWO * ratio["deviation"] / math.sqrt(ratio["rounds"])
                low, high = (ratio["mean"] * math.exp(x) for x in (-half, half))
            else:
                options = ("--least-minutes", f"{minutes:g}")
                ranks.run_trial(
                    *(bench.python, out, model, load, served, ("off", "adaptive")),
                    *(minutes, options, False),
                )
                ratio = ranks.report_of(out)["policies"]["adaptive"]["ratios"][JUDGED]
                low, high = ratio["low"], ratio["high"]
            duration = (time.monotonic() - begin) / 60
            # The trial's minutes do not include the start of its server.
            minutes = minutes or duration - START_MINUTES
            pair |= {f"{which} minutes": duration, f"{which} ratio": ratio["mean"]}
            pair |= {f"{which} half width": math.log(high / low) / 2}
        results.append(rounded(pair))
        print(results[-1], flush=True)
        head = {"machine": ranks.machine(), "made": date.today().isoformat()}
        text = json.dumps({**head, "pairs": results}, indent=1, ensure_ascii=False)
        path.write_text(f"{text}\n", encoding="utf-8")
    widths = ([p[f"{which} half width"] for p in results] for which in ("new", "old"))
    new, old_width = (statistics.fmean(values) for values in widths)
    print(f"half width: {new:.3f}, was {old_width:.3f}: {new / old_width:.2f} of it")


START_MINUTES = 0.7
"""How long a server takes to start, which is the same for both."""


def sources() -> str:
    """A hash of balance scheduling.

    After a change of the trial set the `blocks` of a cell to 0, to measure it again.
    """
    return code_hash(*(ROOT / folder for folder in MEASURED))


def main() -> int:
    """Runs the cells that are missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    add = parser.add_argument
    add("--minutes", type=float, default=MINUTES, help="of a cell (default: 10)")
    add("--cells", default="", metavar="REGEX", help="only those whose names match")
    add("--ranks", type=int, default=ranks.rank_count(), help="default: one per core")
    add("--api-servers", type=int, default=1, help="default: one")
    text = "an older checkout: compare the trial itself, and run no cells"
    add("--against", type=Path, metavar="CHECKOUT", help=text)
    add("--pairs", type=int, default=5, help="of such trials (default: 5)")
    options = parser.parse_args()
    # As an error, so that the trial ends with this.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    paths = Paths(ROOT)
    try:
        python = make_env(paths, build_wheel(paths, Choice(), paths.dist))
        bench = Bench(
            *(python / "bin" / "python", paths.build / "real"),
            *(options.ranks, options.api_servers, options.minutes),
        )
        if options.against:
            against(bench, options.against, options.pairs)
            return 0
        for cell in cells():
            if cell.folder in bench.measured() or not re.search(
                options.cells, cell.folder
            ):
                continue
            print(f"{datetime.now():%H:%M} {cell.folder}", flush=True)
            result = bench.make(cell)
            if result is None:
                print(f"{cell.folder}: needs the cell with all slots in use first")
                continue
            bench.write(result)
        print(f"{bench.result}: has {len(bench.measured())} of {len([*cells()])} cells")
    except ToolError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
