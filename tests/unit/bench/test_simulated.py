"""What renews the results, and the tables of the pages."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

import simulated
import tables
from grids import Cell, Regime, Window

ROOT = Path(__file__).parents[3]


def cells():
    """One cell with a load, of 100 requests."""
    window = Window("Mooncake", "mooncake_conversation.jsonl", 700, 100)
    regime = Regime(2, 4)
    policies = "off", "adaptive", "adaptive, one API server"
    scenario, rate = regime.scenario(window), window.rate()
    return [Cell({"regime": "small"}, scenario, policies, (0,), 0.9, rate)]


def make(folder, minutes=10.0):
    """Whether all was made, and how many runs are known then."""
    runs = simulated.Runs(folder, 1, minutes)
    return simulated.make("small", cells(), runs, folder), len(runs._figures)


def test_a_result_goes_on_where_it_was(tmp_path, capsys):
    assert make(tmp_path, 0) == (False, 2)
    (kept,) = tmp_path.glob("*.jsonl")
    with kept.open("a") as file:
        file.write('["a run that was killed while it wr')
    assert not (tmp_path / "small.json").exists()
    assert make(tmp_path, 0) == (False, 3)
    assert make(tmp_path) == (True, 4)
    (cell,) = json.loads((tmp_path / "small.json").read_text())["cells"]
    off, adaptive, served = cell["policies"].values()
    assert adaptive["mean_e2el_ms"] < off["mean_e2el_ms"]
    assert served["mean_e2el_ms"] != adaptive["mean_e2el_ms"], "another run"


def test_a_changed_simulator_makes_its_runs_anew(monkeypatch, tmp_path):
    before = simulated.sources_hash()
    changed = tmp_path / "loop.py"
    changed.write_text("# another one\n")
    monkeypatch.setattr(simulated.loop, "__file__", str(changed))
    assert simulated.sources_hash() != before


def cell(of, off, align, adaptive):
    times = {"off": off, "align": align, "adaptive": adaptive, "off, vLLM 0.30": 0.1}
    times[tables.LIMITED] = 2 * adaptive
    alike = {"median_ttft_ms": 1.0, "p99_ttft_ms": 2.0}
    policies = {
        name: {"mean_e2el_ms": 1e3 * t, "goodput": 0.5 + (name == "align") / 10} | alike
        for name, t in times.items()
    }
    return {"regime": tables.USUAL, "of": of, "load": 0.9, "policies": policies}


def test_a_table_shows_the_worst_cell_and_whose_it_is():
    """A lead is over the best rule as it is served, picked for each cell."""
    seen = [cell("a", 10, 8, 4), cell("b", 11, 10, 12.5)]
    results = {"regimes": {"cells": seen}, "unseen": {"cells": seen[:1]}}
    text = "before\n<!-- table regimes -->\nold\n<!-- end -->\nafter\n"
    page = tables.filled(text, results)
    assert "old" not in page
    assert page.startswith("before\n<!-- table regimes -->\n| regime |")
    assert page.endswith("|\n<!-- end -->\nafter\n")
    # The mean is of ratios, 0.5 and 1.25.
    line = f"| {tables.USUAL} | 2 | 0.67 | +20.9; -25.0 (align, b, 90 %) "
    line += "| 1.00; 1.00 | 1.00; 1.00 "
    line += "| +0.0; +0.0 | 1.35 | 1.00; 1.00 | 1.00; 1.00 | +0.0; +0.0 |"
    assert line in page.splitlines()
    assert "| unseen windows of a | 1 | 0.40 | +50.0; +50.0 (align, a, 90 %) |" in page
    assert tables.filled(page, results) == page
    assert ["1 of 2", "1: 20.0 % in b, 90 %"] in [
        row[-2:] for row in tables.of_rivals(results) if row[0] == "`align`"
    ]


@pytest.mark.parametrize("page", tables.PAGES)
def test_the_tables_are_those_of_the_results(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    results = {
        path.stem: json.loads(path.read_text(encoding="utf-8"))
        for path in (ROOT / "bench" / "results").glob("*.json")
    }
    assert tables.filled(text, results) == text


DRAW = """
import sys
sys.path.append("bench")
import pathlib, pictures
for name in ("rent", "load", "adaptive", "off"):
    pictures.draw(name, pathlib.Path(sys.argv[1]))
"""


def test_the_pictures_are_those_of_the_policies(tmp_path):
    """As they are drawn now; other versions of matplotlib draw other files."""
    command = [sys.executable, "-c", DRAW, str(tmp_path)]
    subprocess.run(command, check=True, cwd=ROOT)
    drawn = {path.stem: path.read_text() for path in tmp_path.iterdir()}
    assert all("</svg>" in text for text in drawn.values())
    for name in ("off", "adaptive"):
        kept = ROOT / "docs" / "pictures" / f"{name}.svg"
        assert drawn[name] == kept.read_text()


def test_no_policy_looks_as_if_it_computed_fewer_prompts():
    tokens = {}
    for name in ("off", "cap", "align", "adaptive"):
        text = (ROOT / "docs" / "pictures" / f"{name}.svg").read_text()
        (found,) = re.findall(rf"{name}: ([\d,]+) tokens of prompts computed", text)
        tokens[name] = int(found.replace(",", ""))
    assert min(tokens.values()) > 0.9 * max(tokens.values())
    assert tokens["adaptive"] > 0.97 * tokens["off"]
