"""Writes docs/results.md and docs/frontier.md from the JSON files in bench/results.

::

    python bench/table.py [--check]
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import costs_page
import frontier_page

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
DOCS = ROOT / "docs"
ORACLE = "perfect sharing"
GAIN = "steady_output_throughput"

Case = dict[str, Any]


def load(name: str) -> dict[str, Any] | None:
    """The document of that name; None if it has not been made."""
    path = RESULTS / f"{name}.json"
    if not path.exists():
        return None
    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return document


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table; all columns but the first are numbers."""
    lines = [head, ["---", *["--:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def origin(document: dict[str, Any]) -> str:
    """How the numbers came about."""
    found = document["versions"]
    return (
        f"`{document['command']}`, vLLM {found['vllm']}, Python {found['python']}, "
        f"policies {found.get('balance', 'of an earlier version')}"
    )


def published(document: dict[str, Any]) -> str:
    """The published figures beside the simulated ones."""
    (case,) = document["cases"].values()
    cost = case["scenario"]["cost"]
    rows = []
    for policy, figures in document["published"].items():
        found = case["policies"][policy]
        for name, unit in (("output_throughput", "tok/s"), ("mean_tpot_ms", "ms")):
            mean, spread = found["mean"][name], found["spread"][name]
            rows.append(
                [
                    f"{policy}, {'output' if unit == 'tok/s' else 'TPOT'} {unit}",
                    f"{figures[name]:g}",
                    f"{mean:.4g} ± {spread / 2:.2g}",
                    f"{mean / figures[name] - 1:+.1%}",
                ]
            )
    return (
        "## The published run\n\n"
        "DeepSeek-V3.1, 3500 input and 1500 output tokens, 512 requests, batch 128, as "
        "vllm-ascend #5212 reports it. The constants of the step time are **fitted** "
        f"to this table, not measured: t0 {cost['t0'] * 1e3:g} ms, a "
        f"{cost['a'] * 1e6:g} µs, b {cost['b'] * 1e6:g} µs, c {cost['c'] * 1e3:g} ms, "
        f"phi {cost['phi']:g}; output lengths vary by 1.5 %. The mean TTFT does not "
        "fit as well and is not claimed. ± is half the range over "
        f"{len(document['seeds'])} seeds.\n\n"
        + table(["figure", "published", "simulated", "difference"], rows)
        + f"\n\n{origin(document)}\n"
    )


def _cells(
    case: Case, policies: Iterable[str], cell: Callable[[Case], str]
) -> list[str]:
    return [cell(case["policies"][policy]) for policy in policies]


def workloads(document: dict[str, Any]) -> str:
    """Gains, latencies and shares of the bounds, by workload and policy."""
    cases: dict[str, Case] = document["cases"]
    names = [name for name in next(iter(cases.values()))["policies"] if name != "off"]
    policies = [name for name in names if name != ORACLE]
    gains = [
        [name, *_cells(case, names, lambda found: f"{found['gain'][GAIN]:+.0%}")]
        for name, case in cases.items()
    ]
    e2e = [
        [
            name,
            *_cells(
                case, policies, lambda found: f"{found['gain']['mean_e2el_ms']:+.0%}"
            ),
        ]
        for name, case in cases.items()
    ]

    def latency(found: Case) -> str:
        mean = found["mean"]
        return (
            f"{mean['median_ttft_ms'] / 1e3:.1f} / {mean['p99_ttft_ms'] / 1e3:.0f} / "
            f"{mean['p99_itl_ms']:.0f}"
        )

    latencies = [
        [name, *_cells(case, ["off", *policies], latency)]
        for name, case in cases.items()
    ]

    def shares(case: Case) -> list[str]:
        oracle = case["policies"][ORACLE]["mean"]["output_throughput"]
        return _cells(
            case,
            ["off", *policies],
            lambda found: (
                f"{found['mean']['bound_share']:.0%} / "
                f"{found['mean']['output_throughput'] / oracle:.0%}"
            ),
        )

    bounds = [[name, *shares(case)] for name, case in cases.items()]
    widest = max(
        found["gain_spread"][GAIN]
        for case in cases.values()
        for found in case["policies"].values()
    )
    return (
        "## Policies by workload\n\n"
        "4 ranks of 32 requests unless said otherwise, constants as above (phi 0), "
        f"means over {len(document['seeds'])} seeds; the gains below differ by at most "
        f"{widest * 100:.0f} points between seeds. `interval-2` is vLLM 0.30's "
        "`--prefill-schedule-interval 2`, `sglang-30` a delayer like SGLang's, and "
        f"*{ORACLE}* is off with every prompt spread evenly over all ranks; a policy "
        "can pass it only by also collecting prompts into fewer steps, which saves c."
        "\n\n"
        "Output tokens per second over off, until the last request was sent:\n\n"
        + table(["workload", *names], gains)
        + "\n\nMean time from sending a request to its last token, over off (less is "
        "better):\n\n"
        + table(["workload", *policies], e2e)
        + "\n\nTTFT p50 s / TTFT p99 s / ITL p99 ms:\n\n"
        + table(["workload", "off", *policies], latencies)
        + f"\n\nThroughput of the whole run, of the physical bound / of *{ORACLE}* (at "
        "a given request rate it says how full the ranks are, not how good the policy "
        "is):\n\n"
        + table(["workload", "off", *policies], bounds)
        + f"\n\n{origin(document)}\n"
    )


def sensitivity(document: dict[str, Any]) -> str:
    """Gains while one constant at a time is varied."""
    cases: dict[str, Case] = document["cases"]
    policies = [
        name for name in next(iter(cases.values()))["policies"] if name != "off"
    ]
    rows = [
        [name, *_cells(case, policies, lambda found: f"{found['gain'][GAIN]:+.1%}")]
        for name, case in cases.items()
    ]
    return (
        "## Sensitivity\n\n"
        "The same gain on `3500/1500` and `lognormal 600/300` while one thing is "
        f"varied; {len(document['seeds'])} seeds.\n\n"
        + table(["varied", *policies], rows)
        + f"\n\n{origin(document)}\n"
    )


def kv_limited(document: dict[str, Any]) -> str:
    """Gains and latencies where the KV cache is full."""
    cases: dict[str, Case] = document["cases"]
    rows = [
        [
            f"{name}, {policy}",
            f"{found['gain'][GAIN]:+.1%} ± {found['gain_spread'][GAIN] / 2:.1%}",
            f"{found['mean']['mean_tpot_ms']:.0f}",
            f"{found['mean']['median_ttft_ms'] / 1e3:.1f}",
            f"{found['mean']['p99_ttft_ms'] / 1e3:.0f}",
            f"{found['mean']['p99_itl_ms']:.0f}",
            f"{found['mean']['mean_e2el_ms'] / 1e3:.0f}",
        ]
        for name, case in cases.items()
        for policy, found in case["policies"].items()
    ]
    parts = ("step", "decodes", "prefill", "prefill steps", "imbalance")
    spent = [
        [
            f"{name}, {policy}",
            *(f"{found['ms_per_token'][part]:.3f}" for part in parts),
            f"{sum(found['ms_per_token'].values()):.3f}",
        ]
        for name, case in cases.items()
        for policy, found in case["policies"].items()
    ]
    return (
        "## A full KV cache\n\n"
        "As many requests as slots, but a KV cache for about half of them: requests "
        "queue for blocks and are preempted. `cap` does nothing here: no rank has all "
        "slots in use. vLLM's own schedulers (`--engine real`); "
        f"means over the seeds {', '.join(map(str, document['seeds']))}, ± is half the "
        "range. TTFT counts the wait in the queue.\n\n"
        + table(
            [
                "",
                "gain",
                "TPOT ms",
                "TTFT p50 s",
                "TTFT p99 s",
                "ITL p99 ms",
                "e2e s",
            ],
            rows,
        )
        + "\n\nWhere the time goes, ms per output token of all ranks: the constant "
        "part of a step (more if fewer requests decode together), the decodes, the "
        "prefill if it were shared evenly (prompts that are computed again included), "
        "the price of any prefill, and what the fullest rank has more to prefill than "
        "the mean:\n\n"
        + table(["", *parts, "sum"], spent)
        + f"\n\n{origin(document)}\n"
    )


def scale(document: dict[str, Any]) -> str:
    """Speed of the simulator."""
    rows = [
        [
            f"{ranks} ranks, {policy}",
            f"{rate:,.0f}",
            f"{rate * int(ranks):,.0f}",
        ]
        for ranks, rates in document["steps_per_second"].items()
        for policy, rate in rates.items()
    ]
    imports = "with" if document["torch_imported"] else "without"
    return (
        "## Speed of the simulator\n\n"
        "Per second of processor time, on one core. The process took at most "
        f"{document['peak_memory_mib']:.0f} MiB {imports} vLLM's own imports.\n\n"
        + table(["", "steps", "rank-steps"], rows)
        + f"\n\n{origin(document)}\n"
    )


def wall_clock(document: dict[str, Any], ranks: int) -> str:
    """Measured and simulated ratios to off."""
    measured = document["measured"]
    predictions = document["simulated"], document["simulated_with_own_host_time"]

    def ratio(found: Case, policy: str, figure: str) -> float:
        value: float = found[policy]["mean"][figure] / found["off"]["mean"][figure]
        return value

    rows = []
    for policy in measured:
        if policy == "off":
            continue
        for figure, title in (
            (GAIN, "throughput"),
            ("mean_tpot_ms", "TPOT"),
            ("mean_e2el_ms", "e2e"),
        ):
            wall = ratio(measured, policy, figure)
            off = measured["off"]["mean"][figure]
            spread = measured[policy]["spread"][figure] / off / 2
            rows.append([f"{policy}, {title}", f"{wall:.2f} ± {spread:.2f}"])
            for found in predictions:
                predicted = ratio(found, policy, figure)
                points = (predicted - wall) * 100
                rows[-1].append(f"{predicted:.2f} ({points:+.0f})")
    host = {
        policy: sum(found["host_seconds"] for found in fits) / len(fits) * 1e3
        for policy, fits in document["calibration"].items()
    }
    spent = ", ".join(f"{policy} {ms:.1f}" for policy, ms in host.items())
    return (
        f"## Wall clock, {ranks} ranks\n\n"
        "Real servers on the emulated device, on a machine with "
        f"{document['cores']} cores that did nothing else; ratios to off, ± half the "
        "range of the repeats, in parentheses the difference in points. The prediction "
        "has the constants calibrated from the logs of off alone. The servers shared "
        "the cores with the clients and so lost time between steps, on average ms: "
        f"{spent}; the last column allows for it. Time scale of "
        f"the device: {document['device']['time_scale']:g}.\n\n"
        + table(["", "measured", "predicted", "with each server's own host time"], rows)
        + f"\n\n{origin(document)}\n"
    )


SECTIONS: dict[str, Callable[[dict[str, Any]], str]] = {
    "published": published,
    "workloads": workloads,
    "sensitivity": sensitivity,
    "kv_limited": kv_limited,
    "wall_clock_dp4": lambda document: wall_clock(document, 4),
    "wall_clock_dp8": lambda document: wall_clock(document, 8),
    "decision-cost": lambda document: costs_page.decision(document, table),
    "hook-cost": lambda document: costs_page.hook(document, table),
    "exchange-cost": lambda document: costs_page.exchange(document, table),
    "scale": scale,
}


def results_page() -> str:
    """The page of results, with a section for each file that exists."""
    sections = [
        section(document)
        for name, section in SECTIONS.items()
        if (document := load(name)) is not None
    ]
    return (
        "# Results\n\n"
        "Written by `python bench/table.py` from `bench/results`; do not edit. All "
        "numbers but those under *Wall clock* are simulated.\n\n" + "\n".join(sections)
    )


def pages() -> dict[Path, str]:
    """All pages for which there are results."""
    found = {DOCS / "results.md": results_page()}
    if (document := load("frontier")) is not None:
        text = frontier_page.page(
            document, table, origin(document), kv_limited=load("kv_limited")
        )
        found[DOCS / "frontier.md"] = text
    return found


def main() -> None:
    """Writes the pages, or checks that they are up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    for path, text in pages().items():
        if not check:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            sys.exit(f"error: {path} is not up to date; run python bench/table.py")


if __name__ == "__main__":
    main()
