"""The pages of results: `bench/table.py --check` sees what is not as the files say."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomlkit
from vllm.benchmarks.dp_balance.fingerprint import policies_fingerprint

ROOT = Path(__file__).parents[2]
HELPERS = ROOT / "tests" / "unit" / "helpers"
POLICIES = "vllm/v1/core/sched/balance"
NEEDED = (
    "bench",
    POLICIES,
    "vllm/benchmarks/dp_balance/fingerprint.py",
    "docs/results.md",
    "docs/frontier.md",
)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the pages are made of, in which all pages are up to date."""
    for name in NEEDED:
        target = tmp_path / name
        target.parent.mkdir(parents=True, exist_ok=True)
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, target)
    assert table(tmp_path, "--check") == ""
    return tmp_path


def test_the_pictures_can_be_drawn(tree: Path) -> None:
    script = tree / "bench" / "frontier_pictures.py"
    subprocess.run([sys.executable, str(script)], check=True, timeout=120)
    drawn = sorted(path.name for path in (tree / "docs" / "pictures").iterdir())
    assert drawn == ["frontier-lead.svg", "frontier-trade.svg"]


def test_the_trade_off_on_traces_can_be_drawn(tree: Path) -> None:
    script = tree / "bench" / "tradeoff_picture.py"
    subprocess.run([sys.executable, str(script)], check=True, timeout=120)
    result = json.loads((tree / "bench" / "results" / "tradeoff.json").read_text())
    near = sum(
        point[name] < 0.25
        for point in result["points"]
        for name in ("mean", "light_mean")
    )
    picture = (tree / "docs" / "pictures" / "tradeoff.svg").read_text()
    assert picture.count('id="PathCollection_') == near > 0, "a mark for each"


def test_a_trace_grid_with_less_time_does_not_overwrite_one_with_more(
    tree: Path,
) -> None:
    script = """
import sys
import pure_vllm
import trace_grid
trace_grid.write([{"cell": number} for number in range(int(sys.argv[1]))])
"""
    result = tree / "bench" / "results" / "traces.json"
    before = result.read_text()
    cells = len(json.loads(before)["cells"])

    def write(count: int) -> str:
        ended = subprocess.run(
            [sys.executable, "-c", script, str(count)],
            env=os.environ | {"PYTHONPATH": f"{tree / 'bench'}:{HELPERS}"},
            capture_output=True,
            text=True,
            timeout=60,
        )
        return ended.stderr

    assert f"has {cells} cells, these runs {cells - 1} of" in write(cells - 1)
    assert result.read_text() == before
    assert write(cells) == ""
    assert len(json.loads(result.read_text())["cells"]) == cells


def table(tree: Path, *options: str) -> str:
    """Runs the command; returns its error, "" if it succeeds."""
    script = [sys.executable, str(tree / "bench" / "table.py"), *options]
    ended = subprocess.run(script, capture_output=True, text=True, timeout=60)
    assert (ended.returncode == 0) == (ended.stderr == ""), ended.stderr
    return ended.stderr


def edit(path: Path, pattern: str, replacement: str) -> None:
    """Replaces the one place that the pattern matches."""
    text, count = re.subn(pattern, replacement, path.read_text(), count=1, flags=re.S)
    assert count == 1, pattern
    path.write_text(text)


@pytest.mark.parametrize("page", ["results", "frontier"])
def test_a_number_that_was_typed_into_a_page_fails(tree: Path, page: str) -> None:
    edit(tree / "docs" / f"{page}.md", r"\+\d\d%", "+98%")
    assert f"{page}.md is not up to date" in table(tree, "--check")
    assert table(tree) == ""
    assert table(tree, "--check") == ""


@pytest.mark.parametrize("page", ["results", "frontier"])
def test_a_changed_template_fails(tree: Path, page: str) -> None:
    edit(tree / "bench" / "templates" / f"{page}.md.jinja", "do not\\s+edit", "edit")
    assert f"{page}.md is not up to date" in table(tree, "--check")


def test_a_changed_result_fails(tree: Path) -> None:
    path = tree / "bench" / "results" / "frontier.json"
    edit(path, r'"gain": \[[\d., -]+\]', '"gain": [9.5, 9.5, 9.5]')
    assert "is not up to date" in table(tree, "--check")


def test_a_sentence_takes_its_number_from_the_result(tree: Path) -> None:
    path = tree / "bench" / "results" / "published.json"
    edit(path, '"t0": 0.039', '"t0": 0.0415')
    table(tree)
    assert "t0 41.5 ms" in " ".join((tree / "docs" / "results.md").read_text().split())


@pytest.fixture
def renewed(tree: Path) -> Path:
    """The copy as if all results had been made with the policies of the code."""
    for path in (tree / "bench" / "results").glob("*.json"):
        set_policies(tree, path.stem, policies_fingerprint())
    list_older(tree)
    assert table(tree) == ""
    assert table(tree, "--check") == ""
    return tree


def set_policies(tree: Path, name: str, policies: str) -> None:
    """Says in a result with which policies it was made."""
    path = tree / "bench" / "results" / f"{name}.json"
    document = json.loads(path.read_text())
    if "versions" in document:
        document["versions"]["balance"] = policies
    else:
        document["policies"] = policies
    path.write_text(json.dumps(document))


def list_older(tree: Path, *entries: dict[str, object]) -> None:
    """Lists results as older."""
    path = tree / "bench" / "older_results.toml"
    path.write_text(tomlkit.dumps({"older": entries}))


FORMER = "0123456789ab"
ENTRY = {
    "results": ["frontier"],
    "policies": FORMER,
    "made": "2026-01-02",
    "why": "a reason.",
}


def test_an_older_result_must_be_listed_and_the_page_says_so(renewed: Path) -> None:
    set_policies(renewed, "frontier", FORMER)
    error = table(renewed, "--check")
    assert f"made with policies {FORMER}, those of the code are" in error
    assert "make it again, or list it" in error
    assert table(renewed) == error, "writing refuses it as well"
    list_older(renewed, ENTRY)
    assert table(renewed) == ""
    page = " ".join((renewed / "docs" / "frontier.md").read_text().split())
    assert f"made with policies {FORMER} (2026-01-02), which are not those" in page
    assert "a reason." in page


def test_changed_policies_make_every_result_older(renewed: Path) -> None:
    with (renewed / POLICIES / "policies" / "adaptive.py").open("a") as file:
        file.write("# changed\n")
    assert "make it again, or list it" in table(renewed, "--check")


def test_an_entry_whose_result_was_made_again_fails(renewed: Path) -> None:
    list_older(renewed, ENTRY)
    assert "frontier is listed as made with" in table(renewed, "--check")


def test_an_entry_without_a_result_fails(renewed: Path) -> None:
    list_older(renewed, ENTRY | {"results": ["ghost"]})
    assert "there is no result ghost" in table(renewed, "--check")


def test_an_entry_says_everything_once(renewed: Path) -> None:
    list_older(renewed, ENTRY, ENTRY)
    assert "frontier is listed twice" in table(renewed, "--check")
    list_older(renewed, {"results": ["frontier"]})
    assert "give results, policies, made and why" in table(renewed, "--check")
