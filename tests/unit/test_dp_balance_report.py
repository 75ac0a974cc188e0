"""What `vllm bench dp-balance` writes: advice, tables, files and the page."""

import argparse
import json
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest
from vllm.benchmarks.dp_balance import chart, recommend, report, simulate
from vllm.benchmarks.dp_balance.metrics import Metrics
from vllm.benchmarks.dp_balance.recommend import advise
from vllm.benchmarks.dp_balance.results import PolicyResult, read_json

SMALL = [
    *("--num-prompts", "60", "--data-parallel-size", "2"),
    *("--input-len", "800", "--output-len", "uniform:20:60"),
    *("--max-num-seqs", "4"),
]
VOID = {"meta", "link", "br"}


def run(module: object, *arguments: str) -> None:
    parser = argparse.ArgumentParser()
    module.add_cli_args(parser)  # type: ignore[attr-defined]
    module.main(parser.parse_args(arguments))  # type: ignore[attr-defined]


def result(policy: str, *e2e_ms: float, ttft_p99_ms: float = 1000.0) -> PolicyResult:
    fields = dict.fromkeys(Metrics.__dataclass_fields__, 100.0)
    runs = [
        Metrics(**fields | {"mean_e2el_ms": e2e, "p99_ttft_ms": ttft_p99_ms})  # type: ignore[arg-type]
        for e2e in e2e_ms
    ]
    return PolicyResult(policy, runs)


OFF = result("off", 100.0, 102.0)


def test_advice_names_the_policy_with_the_shortest_requests() -> None:
    advice = advise([OFF, result("cap", 90.0, 92.0), result("x", 80.0, 81.0)], None)
    assert advice.startswith("Use --data-parallel-balance x: requests end 20% earlier")


def test_advice_is_to_leave_it_off_when_the_gain_is_small_or_chance() -> None:
    small = advise([OFF, result("cap", 99.0, 101.0)], None)
    chance = advise([OFF, result("cap", 80.0, 110.0)], None)
    assert small.startswith("Leave it off: with the best policy, cap,")
    assert chance.startswith("Leave it off")


def test_advice_respects_the_ttft_budget() -> None:
    slow_start = result("x", 50.0, 50.0, ttft_p99_ms=9000)
    assert "balance cap" in advise([OFF, slow_start, result("cap", 90.0, 90.0)], 2000)
    assert advise([OFF, slow_start], 2000).startswith("Leave it off: every policy")


def test_simulate_saves_what_is_needed_to_repeat_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--save-result", "--result-dir", str(tmp_path), "--num-seeds", "2"]
    run(simulate, *SMALL, *options, "--result-filename", "r.json", "--policy", "off")
    printed = capsys.readouterr()
    assert printed.out.startswith("policy ")
    assert printed.err == "", "no progress bar unless standard error is a terminal"
    document = read_json(tmp_path / "r.json", "simulate")
    assert {"command", "versions", "date", "scenario"} <= document.keys()
    assert document["seeds"] == [0, 1]
    text = (tmp_path / "r.json").read_text()
    assert json.loads(text)["results"][0]["runs"][1]["completed"] == 60


def test_recommend_ends_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    run(recommend, *SMALL, "--policy", "cap", "--num-seeds", "1")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(("Use --data-parallel-balance cap", "Leave it off"))
    assert last.endswith(".")


class Page(HTMLParser):
    """Collects tags and text, and fails on unbalanced tags."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def page_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "page.html"
    run(report, *SMALL, "--output", str(path), "--policy", "off", "cap", "sglang-5")
    return path


def test_page_has_a_table_a_frontier_and_a_timeline_per_policy(page_path: Path) -> None:
    page = Page(page_path.read_text())
    names = [tag for tag, _ in page.tags]
    assert names.count("table") == 1
    assert names.count("polyline") == 2 * 3
    timelines = [
        a for _, a in page.tags if a.get("aria-label") == "timeline of the ranks"
    ]
    assert len(timelines) == 3
    classes = {
        attributes.get("class") for tag, attributes in page.tags if tag == "path"
    }
    assert {"prefill", "decode", "held", "wait"} <= classes
    assert "2 ranks of at most 4 requests" in page.text


def test_page_asks_for_nothing_from_elsewhere(page_path: Path) -> None:
    html = page_path.read_text()
    assert "<script" not in html
    assert "url(" not in html
    for _, attributes in Page(html).tags:
        for name in ("src", "href", "srcset", "data"):
            assert attributes.get(name, "data:,") == "data:,"


def test_names_are_escaped() -> None:
    drawing = chart.draw("<t>", "x", "y", {"a": [(1.0, 2.0, "<script>")]})
    assert "<script>" not in drawing
    assert "&lt;script&gt;" in drawing


def test_axes_have_round_numbers_and_reach_the_highest_value() -> None:
    assert chart.ticks(1560.0) == [0, 500, 1000, 1500, 2000]
    assert chart.ticks(0.0) == [0.0, 1.0]
    for highest in (0.013, 0.99, 7.0, 88.8, 1e6):
        assert chart.ticks(highest)[-1] >= highest
        assert 4 <= len(chart.ticks(highest)) <= 7


@pytest.mark.skipif(
    shutil.which("chromium") is None, reason="no chromium: install Debian's chromium"
)
def test_page_in_a_browser(page_path: Path, tmp_path: Path) -> None:
    browser = ["chromium", "--headless", "--no-sandbox", "--disable-gpu"]
    profile = f"--user-data-dir={tmp_path / 'profile'}"
    # Every host name is refused, so a page that needed one would show it.
    offline = "--host-resolver-rules=MAP * ~NOTFOUND"
    dump = subprocess.run(
        [*browser, profile, offline, "--dump-dom", page_path.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    seen = Page(dump.stdout)
    assert "What the ranks do" in seen.text
    assert [tag for tag, _ in seen.tags].count("svg") == 2 + 3
    assert "Uncaught" not in dump.stderr
