"""What the documentation names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted((ROOT / "docs").glob("*.md"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tests_that_a_page_names_exist(page):
    named = re.findall(r"`((?:\w+/)*test_\w+\.py)(?:::(\w+))?", page.read_text())
    for file, function in named:
        (found,) = (ROOT / "tests").rglob(file.removeprefix("tests/"))
        if function:
            assert f"def {function}(" in found.read_text(), f"{file}::{function}"


def test_some_page_names_tests():
    assert any("test_waves.py::test_waves" in page.read_text() for page in PAGES)


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted(ROOT.glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_to_files(page):
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
    assert [link for link in links if not (page.parent / link).exists()] == []


def anchors(page: Path) -> set[str]:
    """What a link can point to in a page: its headings, as GitHub names them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", title.lower()) for title in titles]
    return {title.replace(" ", "-") for title in kept}


@pytest.mark.parametrize(
    "page", [*PAGES, *sorted(ROOT.glob("*.md"))], ids=lambda page: page.name
)
def test_links_lead_to_headings(page):
    links = re.findall(r"\]\(([^)#:]*)#([^)]+)\)", page.read_text())
    assert [
        (file, heading)
        for file, heading in links
        if heading not in anchors(page.parent / file if file else page)
    ] == []


def test_some_links_lead_to_headings():
    assert any("](operations.md#" in page.read_text() for page in PAGES)


def test_the_readme_has_the_figures_of_the_results():
    readme = " ".join((ROOT / "README.md").read_text().split())
    results = " ".join((ROOT / "docs" / "results.md").read_text().split())
    all_slots, replayed = results.split("## Wall clock, ")[1:]
    gain, *_ = re.findall(r"\| adaptive \| ([\d.]+)", all_slots)
    assert f"gave [{gain} times](docs/results.md#wall-clock-all-slots)" in readme
    time, *_ = re.findall(r"\| adaptive \| ([\d.]+)", replayed)
    assert f"a request took {time} times as long on average" in readme
    published = re.search(
        r"`cap` gains (\+\d+ %) as published and (\+\d+ %) simulated\..*? the same "
        r"lengths give `cap` (\+\d+ %) and `adaptive` (\+\d+ %)",
        results,
    )
    for figure in published.groups():
        assert figure in readme
    (mean,) = re.findall(r"\| phi 0.9 \| \+(\d+)%", results)
    for page in (readme, (ROOT / "docs" / "simulate.md").read_text()):
        assert f"{mean} % on the average" in " ".join(page.split())
