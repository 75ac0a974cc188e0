"""Writes docs/results.md from the JSON files in bench/results.

::

    python bench/pages.py [--check]

The text is in bench/templates/results.md, and `parts` says what stands for its {words}:
every number of a result comes from its file. A result that was made with other policies
than those of the code must be listed in bench/older_results.toml, and the page says so.
"""

import argparse
import json
import re
import runpy
import statistics
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import measured_tables as measured
import tables
import tomlkit

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "bench" / "results"
OLDER = ROOT / "bench" / "older_results.toml"
TEMPLATE = ROOT / "bench" / "templates" / "results.md"
PAGE = ROOT / "docs" / "results.md"
FINGERPRINT = ROOT / "vllm" / "benchmarks" / "dp_balance" / "fingerprint.py"
NO_POLICY = "off"
"""Stands for the policies of a result that depends on none."""

Document = dict[str, Any]


class PageError(Exception):
    """A page cannot be written, or is not up to date; the message says what to do."""


def load() -> dict[str, Document]:
    """Every result, by the name of its file.

    Raises:
        PageError: there is none.
    """
    found = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(RESULTS.glob("*.json"))
    }
    if not found:
        raise PageError(f"{RESULTS}: no results; make them with bench/simulated.py")
    return found


def policies_of(document: Document) -> str:
    """Hash of the policies that the result was made with."""
    versions = document.get("versions")
    return str(versions["balance"] if versions else document["policies"])


def check_age(
    results: Mapping[str, Document], older: Mapping[str, str], code: str
) -> None:
    """Compares the policies of every result with those of the code.

    Args:
        results: by name.
        older: by the name of a result that is known to be older, its day and why.
        code: hash of the policies of the code.

    Raises:
        PageError: a result is older and not listed, or listed and not older.
    """
    for name in sorted(results.keys() | older.keys()):
        if name not in results:
            raise PageError(f"{OLDER}: there is no result {name}; take it out")
        made_with = policies_of(results[name])
        if made_with == NO_POLICY:
            continue
        if made_with == code and name in older:
            raise PageError(f"{OLDER}: {name} was made again; take it out")
        if made_with != code and name not in older:
            raise PageError(
                f"{RESULTS / name}.json: made with policies {made_with}, those of the "
                f"code are {code}; make it again, or list it in {OLDER} with its day "
                "and why"
            )


def lines(rows: Iterable[Sequence[str]]) -> str:
    """The lines of a Markdown table below its head."""
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def wrapped(page: str) -> str:
    """The page with its paragraphs filled anew, since numbers have come into them.

    Tables, headings and pictures take a line each, and lists stay as they are.
    """
    filled = [
        block
        if block.startswith(("|", "#", "!", "- "))
        else textwrap.fill(
            " ".join(block.split()), 98, break_long_words=False, break_on_hyphens=False
        )
        for block in re.split(r"\n{2,}", page.strip("\n"))
    ]
    return "\n\n".join(filled) + "\n"


def origin(name: str, document: Document, older: Mapping[str, str]) -> str:
    """What made a result, on what, and with which policies."""
    if versions := document.get("versions"):
        interpreter = document.get("interpreter", "CPython")
        of = "" if interpreter == "CPython" else f" of {interpreter}"
        made_on = f"Python {versions['python']}{of}"
    else:
        load = document["load_average"][0]
        made_on = f"Python {document['python']}, {document['machine']}, "
        made_on += f"load {load} at the end"
    former = ", not those of this code" * (name in older)
    policies = policies_of(document)
    return f"`{document['command']}`, {made_on}, policies {policies}{former}"


def former(older: Mapping[str, str]) -> str:
    """Which results are older, and why; empty if none is."""
    names: dict[str, list[str]] = {}
    for name, reason in sorted(older.items()):
        names.setdefault(reason, []).append(name)
    said = "; ".join(f"{', '.join(each)} ({why})" for why, each in names.items())
    return f"**Made with former policies:** {said}." if said else ""


def wall_clocks(results: Mapping[str, Document], older: Mapping[str, str]) -> str:
    """Of each trial on the emulated device what was sent, and the ratios to off."""
    blocks = []
    for name in measured.TRIALS:
        report = results[name]
        titles = ["", *measured.trial_figures(report).values()]
        rows = [titles, ["---"] + ["--:"] * (len(titles) - 1)]
        rows += measured.trial_ratios(report)
        blocks += [measured.trial_sentence(name, report), lines(rows)]
        made = f"python bench/wall_clock.py {name.removeprefix('trial_')}"
        blocks.append(origin(name, {**report, "command": made}, older))
    return "\n\n".join(blocks)


FELT = "off", "align", "adaptive"
SERVED = (
    *("adaptive", "adaptive-fcfs", tables.WITH_VLLM_DISPATCH, "off", "cap", "align"),
    *("align, order and dispatch", "sglang-100", "trtllm"),
)
"""Policies that are shown of the traces."""
ON_AGENTS = "off", "adaptive"
DRAWN = "adaptive", "align", "sglang-100"


def simulated(results: Mapping[str, Document]) -> dict[str, str]:
    """What stands for the words of the template that are of simulated results."""
    t, traces, agents = tables, results["traces"], tables.of_agents(results["agents"])
    deployments, roles = results["deployments"], results["roles"]
    drawn, at_03 = results["synthetic"], tables.select(traces, cost="phi 0.3")
    names = t.distinct(traces["cells"], "trace")
    ends = [cell for cell in at_03 if cell["load"] in (0.3, 0.9)]
    felt = "{median_ttft_s:.1f} / {p99_ttft_s:.0f} / {mean_tpot_ms:.0f} / "
    agent = "{mean_e2el_s:.0f} / {p99_ttft_s:.0f} / {computed_percent:.0f}"
    windows = (
        f"{', '.join(map(str, t.distinct(cells, 'first')))} ({trace})"
        for (trace,), cells in t.groups(traces["cells"], "trace").items()
    )
    more = (f"{t.more_without_padding(traces, each):.0%} on {each}" for each in names)
    equal = {"workload": "3500/1500 exactly", "ranks": 4, "phi": 0.0}
    rows = {
        "deployed": t.deployed(deployments, "A2"),
        "worlds": t.worlds(deployments),
        "on_traces": t.on_traces(traces),
        "felt": t.by_load(ends, FELT, felt + "{goodput_percent:.0f}"),
        "agents": t.by_agents(agents, ON_AGENTS, agent),
        "by_load": t.by_load(at_03, SERVED, "{mean_e2el_s:.1f}"),
        "misses": t.misses(traces["cells"]),
        "decode": t.of_role(roles, "decode"),
        "prefill": t.of_role(roles, "prefill"),
        "trade_offs": t.trade_offs(traces),
        "synthetic": t.synthetic(drawn, DRAWN),
        "numbers": t.numbers(results["constants"]),
    }
    full = [c for c in drawn["cells"] if c["workload"].endswith("half the KV cache")]
    return {
        **{name: lines(each) for name, each in rows.items()},
        **{f"{x}_missed": f"{t.missed(traces['cells'], x)}" for x in t.MISSED},
        "full_behind": f"{-statistics.fmean(map(t.gain_lead, full)):.0%}",
        "full_worst": f"{-min(map(t.gain_lead, full)):.0%}",
        "light_missed": f"{t.missed(t.select(traces, load=0.3), 'goodput')}",
        "cells": f"{len(traces['cells'])}",
        "ttft_slo": f"{traces['slo']['ttft_s']:g}",
        "tpot_slo": f"{1e3 * traces['slo']['tpot_s']:g}",
        "scattered": t.computed_by_ranks(results["agents"], "off"),
        "gathered": t.computed_by_ranks(results["agents"], "adaptive"),
        "agents_behind": t.agents_missed(agents, 1.02),
        "agents_dispatch": t.agents_missed(agents, 0.6, t.WITH_VLLM_DISPATCH),
        "agents_tail": t.agents_missed(agents, 1.1, figure="p99_ttft_ms"),
        "gain_shared": f"{t.mean(t.select(drawn, phi=0.9), 'adaptive', 'gain'):.0%}",
        "gain_equal": f"{t.gain(drawn, 'adaptive', **equal):.0%}",
        "published": t.over_published(deployments, "A3"),
        "windows": "; ".join(windows),
        "without_padding": ", ".join(more),
    }


def parts(results: Mapping[str, Document], older: Mapping[str, str]) -> dict[str, str]:
    """What stands for the words of the template."""
    run, measuring = results["real_run"], results["cost_measuring"]
    return {
        **simulated(results),
        **{f"origin_{n}": origin(n, each, older) for n, each in results.items()},
        "former": former(older),
        "wall_clocks": wall_clocks(results, older),
        "real_requests": f"{run['requests']}",
        "real_steps": f"{run['steps']:,}",
        "real_run": lines(measured.real_run(run)),
        "cost_decision": lines(measured.decisions(results["cost_decision"])),
        "measured_prompt": f"{measuring['results'][0]['prompt']:,}",
        "measuring_goal": f"{measuring['results'][0]['goal_us']:.0f}",
        "cost_measuring": lines(measured.measurings(measuring)),
        "cost_dispatch": lines(measured.dispatches(results["cost_dispatch"])),
    }


def page() -> str:
    """The page as it should be.

    Raises:
        PageError: a result is older than the policies and not listed as that.
    """
    results = load()
    older = tomlkit.parse(OLDER.read_text(encoding="utf-8")).unwrap()
    check_age(
        results, older, runpy.run_path(str(FINGERPRINT))["policies_fingerprint"]()
    )
    found = parts(results, older)
    template = TEMPLATE.read_text(encoding="utf-8")
    try:
        return wrapped(re.sub(r"\{(\w+)\}", lambda word: found[word[1]], template))
    except KeyError as error:
        raise PageError(f"{TEMPLATE}: nothing stands for {error}") from None


def main() -> None:
    """Writes the page, or checks that it is up to date."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    try:
        text = page()
        if not check:
            PAGE.write_text(text, encoding="utf-8")
        elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
            raise PageError(f"{PAGE} is not up to date; run python bench/pages.py")
    except PageError as error:
        sys.exit(f"error: {error}")


if __name__ == "__main__":
    main()
