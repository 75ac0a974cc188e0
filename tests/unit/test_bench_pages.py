"""The page of results: what writes it, and what `bench/pages.py --check` sees."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomlkit
from vllm.benchmarks.dp_balance.fingerprint import policies_fingerprint

ROOT = Path(__file__).parents[2]
POLICIES = "vllm/v1/core/sched/balance"
NEEDED = (
    *("bench", POLICIES, "vllm/benchmarks/dp_balance", "docs/results.md"),
    "tests/unit/helpers/pure_vllm.py",
)
NAME = "synthetic"
"""Of the result that the tests change."""


@pytest.fixture
def tree(tmp_path):
    """A copy of what the page is made of, in which it is up to date."""
    for name in NEEDED:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, target)
    assert pages(tmp_path, "--check") == ""
    return tmp_path


def pages(tree, *options):
    """Runs the command; returns its error, "" if it succeeds."""
    script = [sys.executable, str(tree / "bench" / "pages.py"), *options]
    ended = subprocess.run(script, capture_output=True, text=True)
    assert (ended.returncode == 0) == (ended.stderr == ""), ended.stderr
    return ended.stderr


def edit(path, pattern, replacement):
    text, count = re.subn(pattern, replacement, path.read_text(), count=1, flags=re.S)
    assert count == 1, pattern
    path.write_text(text)


def result_of(tree, name=NAME):
    return tree / "bench" / "results" / f"{name}.json"


def test_the_picture_can_be_drawn_and_has_its_marks(tree):
    script = tree / "bench" / "pictures.py"
    subprocess.run([sys.executable, str(script)], check=True)
    drawn = (tree / "docs" / "pictures" / "tradeoff.svg").read_text()
    assert drawn.count('id="PathCollection_') > 30
    rule = (tree / "docs" / "pictures" / "rent.svg").read_text()
    assert "<!-- release -->" in rule


def test_a_number_that_was_typed_into_the_page_fails(tree):
    edit(tree / "docs" / "results.md", r"\+\d\d%", "+98%")
    assert "results.md is not up to date" in pages(tree, "--check")
    assert pages(tree) == ""
    assert pages(tree, "--check") == ""


def test_a_sentence_takes_its_number_from_the_result(tree):
    edit(result_of(tree, "traces"), '"ttft_s": 2.0', '"ttft_s": 2.75')
    pages(tree)
    page = " ".join((tree / "docs" / "results.md").read_text().split())
    assert "TTFT ≤ 2.75 s" in page


def test_the_first_table_is_of_upstreams_deployments(tree):
    page = (tree / "docs" / "results.md").read_text()
    head, _, *rows = page[page.index("\n|") :].split("\n\n")[0].strip().splitlines()
    assert head.startswith("| deployment | off, tok/s |")
    found = json.loads(result_of(tree, "deployments").read_text())["cells"]
    cells = [cell for cell in found if (cell["cost"], cell["times"]) == ("A2", 1)]
    assert len(rows) == len(cells) > 10
    # The sixth column names who has most of the others, and the next how far it is.
    policies = cells[0]["policies"]
    others = policies.keys() - {"adaptive", "off", "cap", "align"}
    best = max(others, key=lambda name: policies[name]["output_throughput"])
    ratio = policies["adaptive"]["output_throughput"]
    ratio /= policies[best]["output_throughput"]
    columns = [column.strip() for column in rows[0].split("|")[1:-1]]
    assert columns[5].endswith(f" {best}")
    assert columns[6] == f"{ratio - 1:+.1%}"


@pytest.fixture
def renewed(tree):
    """The copy as if all results had been made with the policies of the code."""
    for path in (tree / "bench" / "results").glob("*.json"):
        set_policies(tree, path.stem, policies_fingerprint())
    list_older(tree)
    assert pages(tree) == ""
    assert pages(tree, "--check") == ""
    return tree


def set_policies(tree, name, policies):
    document = json.loads(result_of(tree, name).read_text())
    if "versions" in document:
        document["versions"]["balance"] = policies
    else:
        document["policies"] = policies
    result_of(tree, name).write_text(json.dumps(document))


def list_older(tree, **entries):
    (tree / "bench" / "older_results.toml").write_text(tomlkit.dumps(entries))


FORMER, WHY = "0123456789ab", "2026-01-02: a reason"


def test_an_older_result_must_be_listed_and_the_page_says_so(renewed):
    set_policies(renewed, NAME, FORMER)
    error = pages(renewed, "--check")
    assert f"made with policies {FORMER}, those of the code are" in error
    assert "make it again, or list it" in error
    assert pages(renewed) == error, "writing refuses it as well"
    list_older(renewed, **{NAME: WHY})
    assert pages(renewed) == ""
    page = " ".join((renewed / "docs" / "results.md").read_text().split())
    assert f"policies {FORMER}, not those of this code" in page
    assert f"former policies:** {NAME} ({WHY})." in page
    set_policies(renewed, NAME, policies_fingerprint())
    assert f"{NAME} was made again; take it out" in pages(renewed, "--check")


SMALL = """
import sys
from dataclasses import replace
sys.path.insert(0, "bench")
import simulated
import grids
(cell,) = [
    cell for cell in grids.traces()
    if cell.labels["first"] == 700 and cell.labels["cost"] == "phi 0.3"
    and cell.labels["load"] == 0.9
]
scenario = replace(
    cell.scenario,
    workload=replace(cell.scenario.workload, num_prompts=100),
    traffic=replace(cell.scenario.traffic, max_concurrency=20),
)
cell = replace(
    cell,
    scenario=scenario,
    policies=("off", "adaptive", "adaptive, 4 API servers"),
)
runs = simulated.Runs(simulated.ROOT / "build", 1, float(sys.argv[1]))
before = len(runs._known)
whole = simulated.make("small", [cell], runs, simulated.ROOT / "build")
print(before, len(runs._known), whole)
"""
"""A grid of one cell: four runs, of which the first tells the rate of the others."""


def make_small(tree, minutes):
    """Runs known before and afterwards, and whether all are made."""
    command = [sys.executable, "-c", SMALL, str(minutes)]
    ended = subprocess.run(
        command, cwd=tree, capture_output=True, text=True, check=True
    )
    before, after, whole = ended.stdout.splitlines()[-1].split()
    return int(before), int(after), whole == "True"


def test_a_benchmark_goes_on_where_it_was(tree):
    assert make_small(tree, 0) == (0, 2, False)
    assert not (tree / "build" / "small.json").exists()
    (kept,) = (tree / "build").glob("*.jsonl")
    with kept.open("a") as file:
        file.write('["a run that was killed while it wr')
    assert make_small(tree, 0) == (2, 3, False)
    assert make_small(tree, 10) == (3, 4, True)
    assert make_small(tree, 10) == (4, 4, True)
    result = json.loads((tree / "build" / "small.json").read_text())
    assert result["versions"]["balance"] == policies_fingerprint()
    (cell,) = result["cells"]
    assert cell["load"] == 0.9
    off, adaptive, served = cell["policies"].values()
    assert off["gain"] == 0
    assert adaptive["gain"] > 0
    assert adaptive["mean_e2el_ms"] < off["mean_e2el_ms"]
    assert served["mean_e2el_ms"] != adaptive["mean_e2el_ms"], "another run"


@pytest.mark.parametrize(
    "source", [f"{POLICIES}/policies/cap.py", "vllm/benchmarks/dp_balance/loop.py"]
)
def test_a_changed_source_makes_its_runs_anew(tree, source):
    assert make_small(tree, 0) == (0, 2, False)
    with (tree / source).open("a") as file:
        file.write("# changed\n")
    assert make_small(tree, 0) == (0, 2, False)
