# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Results as a table and as a JSON file that says how they came about."""

import json
import math
import platform
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from .errors import UsageError
from .fingerprint import policies_fingerprint
from .metrics import Metrics

FORMAT_VERSION = 1
"""Of the files written here; raised when a reader of old files would misread them."""


@dataclass(frozen=True)
class PolicyResult:
    """The runs of one policy in one scenario, one per seed."""

    policy: str
    runs: Sequence[Metrics]

    def mean(self, name: str) -> float:
        """Mean over the seeds of a figure of `Metrics`."""
        return statistics.fmean(getattr(run, name) for run in self.runs)

    def gains(self, name: str, off: "PolicyResult") -> list[float]:
        """Per seed: how much greater the figure is than with off, as a share."""
        return [
            getattr(mine, name) / getattr(theirs, name) - 1
            for mine, theirs in zip(self.runs, off.runs, strict=True)
        ]


TABLE = (
    ("output tok/s", "output_throughput", "{:.0f}"),
    ("steady tok/s", "steady_output_throughput", "{:.0f}"),
    ("TPOT ms", "mean_tpot_ms", "{:.1f}"),
    ("TTFT p50 s", "median_ttft_ms", "{:.2f}"),
    ("TTFT p99 s", "p99_ttft_ms", "{:.2f}"),
    ("ITL p99 ms", "p99_itl_ms", "{:.0f}"),
    ("e2e mean s", "mean_e2el_ms", "{:.1f}"),
    ("balance", "balance_ratio", "{:.0%}"),
)
"""Title, figure and format of each column."""


def table_rows(results: Sequence[PolicyResult]) -> list[list[str]]:
    """The table with its head, as text; gains are over the result of "off"."""
    off = next((result for result in results if result.policy == "off"), None)
    gain = [] if off is None else ["gain"]
    rows = [["policy", *(title for title, _, _ in TABLE), *gain]]
    for result in results:
        cells = [result.policy]
        for title, name, form in TABLE:
            value = result.mean(name) / (1e3 if title.endswith(" s") else 1)
            cells.append("-" if math.isnan(value) else form.format(value))
        if off is not None:
            gains = result.gains("steady_output_throughput", off)
            cells.append(f"{statistics.fmean(gains):+.1%}")
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
    """What produced a result; "balance" is a hash of the policies' sources."""
    try:
        vllm = version("vllm")
    except PackageNotFoundError:
        vllm = "source tree"
    return {
        "vllm": vllm,
        "python": platform.python_version(),
        "balance": policies_fingerprint(),
    }


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Writes the document.

    Raises:
        UsageError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path}: cannot be written ({error.strerror}).") from None


def read_json(path: Path, kind: str) -> dict[str, object]:
    """Reads a document of that kind that `write_json` wrote.

    Raises:
        UsageError: the file cannot be read, or is of another kind or version.
    """
    try:
        document: dict[str, object] = dict(json.loads(path.read_text("utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(f"{path}: cannot be read as JSON ({error}).") from None
    found = [document.get(key) for key in ("format", "format_version")]
    if found != [f"dp-balance {kind}", FORMAT_VERSION]:
        raise UsageError(
            f"{path}: not a file of `vllm bench dp-balance {kind}`, version "
            f"{FORMAT_VERSION} (it says {found}). Make it again with this vLLM."
        )
    return document
