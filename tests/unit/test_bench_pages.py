"""The pages of results: `bench/table.py --check` sees what is not as the files say."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from vllm.benchmarks.dp_balance.fingerprint import policies_fingerprint

ROOT = Path(__file__).parents[2]
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


def older_file(tree: Path) -> Path:
    return tree / "bench" / "older_results.toml"


def set_policies(tree: Path, name: str, policies: str) -> None:
    """Says in a result with which policies it was made."""
    path = tree / "bench" / "results" / f"{name}.json"
    document = json.loads(path.read_text())
    document["versions"]["balance"] = policies
    path.write_text(json.dumps(document))


def test_a_result_without_an_entry_must_be_of_these_policies(tree: Path) -> None:
    entries = older_file(tree).read_text()
    older_file(tree).write_text(
        re.sub(r"\[wall_clock_dp4\].*?(?=\n\[|$)", "", entries, flags=re.S)
    )
    set_policies(tree, "wall_clock_dp4", policies_fingerprint())
    assert table(tree) == ""
    assert table(tree, "--check") == ""
    set_policies(tree, "wall_clock_dp4", "0123456789ab")
    error = table(tree, "--check")
    assert "made with policies 0123456789ab, those of the code are" in error
    assert "older_results.toml" in error
    assert table(tree) == error, "writing refuses it as well"


def test_changed_policies_make_a_result_older(tree: Path) -> None:
    older_file(tree).write_text("")
    for path in (tree / "bench" / "results").glob("*.json"):
        document = json.loads(path.read_text())
        if "versions" not in document:
            document["policies"] = policies_fingerprint()
            path.write_text(json.dumps(document))
        else:
            set_policies(tree, path.stem, policies_fingerprint())
    assert table(tree) == ""
    assert table(tree, "--check") == ""
    with (tree / POLICIES / "adaptive.py").open("a") as file:
        file.write("# changed\n")
    assert "make it again, or list it" in table(tree, "--check")


def test_an_entry_whose_result_was_made_again_fails(tree: Path) -> None:
    set_policies(tree, "wall_clock_dp4", policies_fingerprint())
    assert "wall_clock_dp4 is listed as made with" in table(tree, "--check")


def test_an_entry_without_a_result_fails(tree: Path) -> None:
    with older_file(tree).open("a") as file:
        file.write('[ghost]\npolicies = "0"\nmade = 2026-01-01\nwhy = "-"\n')
    assert "there is no result ghost" in table(tree, "--check")
