"""What the pages name exists."""

import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from balance_tools.run import listed_by_git

ROOT = Path(__file__).parents[3]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
TESTS = {path.name: path.read_text() for path in (ROOT / "tests").rglob("test_*.py")}


def tracked_and_vendored():
    """Files and folders that git tracks, and those of the patched upstream trees."""
    for name in listed_by_git(ROOT):
        yield from (ROOT / name, *(ROOT / name).parents[: name.count("/")])
    for package in ("vllm", "vllm_ascend"):
        yield from (ROOT / package).rglob("*.py")


FILES = [f"/{path.relative_to(ROOT)}" for path in tracked_and_vendored()]
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@each_page
def test_tests_that_a_page_names_exist(page):
    for file, function in re.findall(
        r"`(?:[\w/]+/)?(test_\w+\.py)?(?:::)?(test_\w+)?[\[`]", page.read_text()
    ):
        text = TESTS.get(file, "") if file else "".join(TESTS.values())
        assert text, f"{page.name}: no {file} in tests"
        if function:
            assert f"def {function}(" in text, f"{page.name}: no {file}::{function}"


@each_page
def test_links_lead_to_files_and_headings(page):
    for file, heading in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", page.read_text()):
        target = page.parent / file if file else page
        assert target.exists(), f"{page.name}: {file}"
        if heading:
            assert heading in anchors(target), f"{page.name}: {file}#{heading}"


def anchors(page):
    """What a link can point to in a page: its headings, as GitHub names them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.replace(" ", "-") for title in kept}


def results(name):
    text = (ROOT / "bench/results" / f"{name}.json").read_text()
    cells: list[dict[str, Any]] = json.loads(text)["cells"]
    return cells


def test_the_headline_of_the_readme_is_what_was_simulated():
    readme = " ".join((ROOT / "README.md").read_text().split())
    over_cap: dict[str, list[float]] = {"A2": [], "A3, padded": [], "A3": []}
    over_rivals: list[float] = []
    for cell in (cell for cell in results("deployments") if cell["times"] == 1):
        served = {n: p["output_throughput"] for n, p in cell["policies"].items()}
        ours = served.pop("adaptive")
        over_cap[cell["cost"]].append(ours / served["cap"])
        if cell["cost"] == "A2":
            rivals = served.keys() - {"off", "cap", "align"}
            over_rivals.append(ours / max(served[name] for name in rivals))
    mean, a2 = statistics.geometric_mean, over_cap["A2"]
    for claim in (
        f"{mean(a2):.2f} times the output tokens of `cap`",
        f"the {len(a2)} deployments",
        f"of {min(a2):.2f} to {max(a2):.2f} times",
        f"it is {mean(over_cap['A3, padded']):.2f} times",
        f"is {100 * (mean(over_rivals) - 1):.1f} % ahead",
    ):
        assert claim in readme


def test_the_readme_says_what_light_load_costs():
    readme = " ".join((ROOT / "README.md").read_text().split())
    for trace, verb in (("Azure conv", "falls"), ("Azure code", "rises")):
        cells = [
            cell["policies"]
            for cell in results("traces")
            if (cell["trace"], cell["cost"], cell["load"]) == (trace, "phi 0", 0.3)
        ]
        off, adaptive = (
            100 * statistics.mean(policies[name]["goodput"] for policies in cells)
            for name in ("off", "adaptive")
        )
        assert f"{verb} from {off:.0f} to {adaptive:.0f} %" in readme


@pytest.mark.parametrize(
    "page",  # that of the results names programs of the past
    [page for page in PAGES if page.name not in ("results.md", "past-bumps.md")],
    ids=lambda page: page.name,
)
def test_files_that_a_page_names_exist(page):
    named = re.findall(r"`([a-z][\w./-]*(?:/|\.py|\.toml))`", page.read_text())
    assert [
        name
        for name in named
        if not name.startswith(("csrc/", "dist/", "build/"))
        and not any(path.endswith(f"/{name.rstrip('/')}") for path in FILES)
    ] == []


def test_newcomers_find_every_page_from_the_readme():
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", (ROOT / "README.md").read_text()))
    pages = {str(page.relative_to(ROOT)) for page in PAGES}
    assert pages - linked <= {"README.md"}
