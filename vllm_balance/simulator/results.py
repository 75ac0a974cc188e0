# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Results as a table, and as a JSON file with command and versions."""

import json
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from ..code_hash import CORE, code_hash
from ..errors import UsageError
from .files import read_text
from .metrics import Metrics

FORMAT_VERSION = 1
"""The version of the files, raised when old files would be misread."""
WORTHWHILE = 0.02
"""Latency must be lower by this share; less does not pay for the complexity."""


@dataclass(frozen=True)
class PolicyResult:
    """The runs of one policy in one scenario, one per seed."""

    policy: str
    runs: Sequence[Metrics]

    def mean(self, name: str) -> float | None:
        """Mean over the seeds of a figure of `Metrics`; None if a run has none."""
        return _mean([getattr(run, name) for run in self.runs])

    def gains(self, name: str, off: "PolicyResult") -> list[float]:
        """Per seed the share by which the figure is greater than with off.

        Empty if a run has no such figure.
        """
        pairs = [
            (getattr(run, name), getattr(run_off, name))
            for run, run_off in zip(self.runs, off.runs, strict=True)
        ]
        if any(run is None or not run_off for run, run_off in pairs):
            return []
        return [run / run_off - 1 for run, run_off in pairs]

    def figure(self, name: str) -> float:
        """The `mean` of a figure that every steady run has."""
        mean = self.mean(name)
        assert mean is not None, name
        return mean

    def gain(self, name: str, off: "PolicyResult") -> float | None:
        """Mean of `gains`; None if there are none."""
        return _mean(self.gains(name, off))


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return statistics.fmean(numbers) if 0 < len(numbers) == len(values) else None


LEAST_TURNS = 3.0
"""Requests must be sent for so many mean latencies; in shorter runs the beginning and
the end weigh more than the part between."""


def unsteady(results: Sequence[PolicyResult]) -> str | None:
    """A text with advice if no policy has a steady part; else None."""
    turns = [result.mean("turns") or 0.0 for result in results]
    steady = [result.mean("steady_mean_e2el_ms") for result in results]
    if max(turns) >= LEAST_TURNS and None not in steady:
        return None
    best = results[turns.index(max(turns))].runs[0]
    text = (
        f"nothing is steady: {best.completed} requests are sent within "
        f"{best.steady_duration:.3g} s, and one takes {best.mean_e2el_ms / 1e3:.3g} s "
        "on average; give "
    )
    if best.first_turn:
        prompts = f"--num-prompts {8 * best.first_turn} or more"
        return f"{text}{prompts} (if there are so many), or a lower --max-concurrency."
    return (
        f"{text}more of them (--num-prompts, or a longer window of the trace), or "
        "fewer per second if the ranks cannot keep up."
    )


def cell(value: float | None, form: str = "{:+.1%}") -> str:
    """A figure as text; "-" if there is none."""
    return "-" if value is None else form.format(value)


TABLE = (
    ("output tok/s", "output_throughput", "{:.0f}"),
    ("steady tok/s", "steady_output_throughput", "{:.0f}"),
    ("TPOT ms", "mean_tpot_ms", "{:.1f}"),
    ("TTFT p50 s", "median_ttft_ms", "{:.2f}"),
    ("TTFT p99 s", "p99_ttft_ms", "{:.2f}"),
    ("ITL p99 ms", "p99_itl_ms", "{:.0f}"),
    ("e2e mean s", "mean_e2el_ms", "{:.1f}"),
    ("balance", "balance_ratio", "{:.0%}"),
    ("within", "attainment", "{:.1%}"),
)
"""Title, figure and format of each column."""


def table_rows(results: Sequence[PolicyResult]) -> list[list[str]]:
    """The table with its head, as text; gains are over the result of "off"."""
    off = next((result for result in results if result.policy == "off"), None)
    gain = [] if off is None else ["gain"]
    has_limits = results[0].mean("attainment") is not None
    table = TABLE if has_limits else TABLE[:-1]
    rows = [["policy", *(title for title, _, _ in table), *gain]]
    for result in results:
        cells = [result.policy]
        for title, name, form in table:
            value = result.mean(name)
            if name == "steady_output_throughput" and not result.runs[0].first_turn:
                value = None  # of an open loop it may be a short window
            if value is not None and title.endswith(" s"):
                value /= 1e3
            cells.append(cell(value, form))
        if off is not None:
            cells.append(cell(result.gain("compared_throughput", off)))
        rows.append(cells)
    return rows


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints aligned columns, the first to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for number, row in enumerate(rows):
        cells = [
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
        if number == 0:
            print("-" * (sum(widths) + 2 * len(widths) - 2))


def versions() -> dict[str, str]:
    """The versions that produced a result; "balance" is the hash of the policies."""
    try:
        vllm = version("vllm")
    except PackageNotFoundError:
        vllm = "source tree"
    return {
        "vllm": vllm,
        "python": platform.python_version(),
        "balance": code_hash(CORE),
    }


def strict_json(document: Mapping[str, object]) -> str:
    """The document as JSON; nan and infinity are null."""
    cleaned = json.loads(json.dumps(document), parse_constant=lambda _: None)
    return json.dumps(cleaned, indent=1, ensure_ascii=False, allow_nan=False)


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Writes the document as `strict_json`.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(strict_json(document) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from None


def read_json(path: Path, *kinds: str) -> dict[str, object]:
    """Reads a document of one of the kinds that `write_json` wrote.

    Raises:
        UsageError: the file cannot be read, or is of another kind or version.
    """
    text = read_text(path)
    try:
        parsed = json.loads(text, parse_constant=lambda _: None)
        document: dict[str, object] = dict(parsed)
    except (ValueError, TypeError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error}).") from None
    declared = [document.get(key) for key in ("format", "format_version")]
    if declared not in [[f"dp-balance {kind}", FORMAT_VERSION] for kind in kinds]:
        raise UsageError(
            f"{path}: not a file of `vllm-balance {' or '.join(kinds)}`, "
            f"version {FORMAT_VERSION} (it says {declared}). Make it again with this "
            "vLLM."
        )
    return document
