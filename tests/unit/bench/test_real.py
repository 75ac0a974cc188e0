"""What measures real ranks goes on where it was, and says what was not run."""

import json
import math
import statistics
import sys
from pathlib import Path

import pytest

import real
import tables
from balance_tools.demo import ranks
from balance_tools.errors import ToolError

PROGRAM = """#!{python}
import json, sys
from pathlib import Path
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
folder = Path(value("--result-dir"))
policies = ["off", "cap", "align", "adaptive"]
with Path.cwd().with_name("words").open("a") as log:
    log.write(" ".join(words) + "\\n")
if words[0] == "simulate":
    assert Path(value("--cost-from")).exists()
    found = [
        {{"policy": each, "runs": [{{"mean_e2el_ms": 1e3 + place}}]}}
        for place, each in enumerate(policies)
    ]
    (folder / "predicted.json").write_text(json.dumps({{"results": found}}))
    sys.exit()
(folder / "report").mkdir(parents=True)
answers = [[number, 700, 50, "a"] for number in range(40)]
(folder / "answers.json").write_text(json.dumps(answers))
mean = {{"mean_e2el_ms": 8000.0, "median_ttft_ms": 900.0}}
ratios = {{"mean_e2el_ms": {{"mean": 0.9, "low": 0.8, "high": 1.0}}}}
report = {{
    "date": "2026-11-28", "requests": 40, "exchange_us": 2000.0, "blocks": 7,
    "stretch_seconds": 30.0, "washout_seconds": 9.0, "carry_over": None,
    "versions": {{"balance": "abc"}},
    "learned_seconds": dict.fromkeys(
        ["decode", "own", "shared", "padding", "attention"], 0.05
    ),
    "policies": {{each: {{"mean": mean, "ratios": ratios}} for each in policies}},
}}
(folder / "report" / "report.json").write_text(json.dumps(report))
"""


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """One whose trials take no time, and whose models are there."""
    program = tmp_path / "bin/vllm-balance"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable))
    program.chmod(0o755)
    monkeypatch.setattr(ranks, "make_model", lambda *_: tmp_path)
    monkeypatch.setattr(real, "RESULTS", tmp_path / "results")
    real.RESULTS.mkdir()
    monkeypatch.setattr(tables, "fill", lambda _: None)
    return real.Bench(program.with_name("python"), tmp_path / "kept", 2, 1, 10)


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_trace_comes_at_its_times_with_what_off_serves_with_all_slots(bench):
    full, late = real.Cell("Azure conv"), real.Cell("Azure conv", 0.7)
    assert bench.make(late) is None, "nobody knows yet what off serves"
    bench.write(bench.make(full))
    assert bench.make(late)["predicted"]["off"] == 1
    rows = lines(bench.folder / late.folder / "trace.jsonl")
    # Sixteen clients with requests of 8 s.
    rate = (real.REQUESTS - 1) / rows[-1]["timestamp"]
    assert rate == pytest.approx(0.7 * 16 / 8, rel=0.01)
    assert rows[0]["timestamp"] == 0
    own = real.rows_of(real.WINDOWS["Azure conv"], 40)
    assert rows[0]["input_length"] == own[0].prompt // 4
    assert statistics.fmean(len(row["hash_ids"]) for row in rows) > 10
    shared = [set(row["hash_ids"]) & set(rows[0]["hash_ids"]) for row in rows[1:]]
    assert not any(shared)
    words = (bench.folder / "words").read_text().splitlines()
    assert "--no-self-timed" in words[0]
    assert "--policy off cap align adaptive" in words[0]
    assert "--minutes 10 --least-minutes 10" in words[0]
    assert "--self-timed" in words[2]


def test_the_model_is_smaller_where_cores_are_slow(monkeypatch):
    for flags, hidden in ("fpu avx2 avx512f", 1024), ("fpu avx2", 768):
        cpu = {"flags": flags, "model name": "X", "cpu family": "25", "model": "1"}
        monkeypatch.setattr(ranks, "_cpu", lambda cpu=cpu: cpu)
        assert ranks.hidden_size() == hidden
    assert " cores of X (family 25, model 1), " in ranks.machine()


def test_what_is_predicted_has_the_lengths_that_were_sent(bench):
    found = bench.make(real.Cell("Azure conv"))
    path = bench.folder / real.Cell("Azure conv").folder
    made, sent = lines(path / "trace.jsonl"), lines(path / "sent.jsonl")
    count = 40  # of the first forty requests lengths are known
    assert len(sent) == count * real.PASSES
    times = [row["timestamp"] for row in sent]
    assert times[:count] == [row["timestamp"] for row in made[:count]]
    period = times[count - 1] * (1 + 1 / count)  # as a trial sends again
    assert times[-1] == pytest.approx(times[count - 1] + (real.PASSES - 1) * period)
    assert {row["input_length"] for row in sent} == {700}
    assert {len(row["hash_ids"]) for row in sent} == {math.ceil(700 / real.CHUNK)}
    for other in (1, count):
        assert not set(sent[0]["hash_ids"]) & set(sent[other]["hash_ids"])
    assert (found["prompt"], found["answer"]) == (700, 50)
    words = (bench.folder / "words").read_text().splitlines()[1]
    assert f"--dataset-path {path / 'sent.jsonl'}" in words
    assert "simulate --cost-from" in words
    assert "--data-parallel-size 2 --max-num-seqs 8 --max-num-batched" in words
    assert f"--max-concurrency 16 --num-prompts {len(sent)}" in words
    assert "--load-balancer prefix-aware" in words, "that of the server, with off, too"
    bench.make(real.Cell())
    given, words = (bench.folder / "words").read_text().splitlines()[2:]
    assert "--random-input-len 400 --random-output-len 48" in given
    assert "--input-len uniform:80:720 --output-len uniform:10:86" in words
    assert "80–720 → 10–86" in real.DRAWN


def test_prompts_of_a_trace_are_as_long_as_it_says(tmp_path):
    """vLLM makes as many tokens as the hash ids stand for, and no more than asked."""
    for name, window in real.WINDOWS.items():
        real.write_trace(tmp_path / name, window, 80, 1.0)
        for row in lines(tmp_path / name):
            assert len(row["hash_ids"]) * real.CHUNK >= row["input_length"]


def test_what_is_known_is_kept_and_what_was_not_run_is_said(bench, monkeypatch):
    first, other = real.Cell(asynchronous=True), real.Cell(drafts=3)
    for cell in (first, other):
        bench.write(bench.make(cell))
    assert {*bench.measured()} == {first.folder, other.folder}
    found = json.loads(bench.result.read_text(encoding="utf-8"))
    assert found["machine"] == ranks.machine()
    assert len(found["cells"]) == len({cell.folder for cell in real.cells()})
    page = "<!-- table real -->\n<!-- end -->\n<!-- table real_costs -->\n<!-- end -->"
    filled = tables.filled(page, {"real-a": {**found, "machine": "one core"}})
    assert filled.count("| **one core** |") == 2
    said = "80–720 → 10–86; all slots; asynchronous | 8.0 | 0.90 (0.80–1.00) / 1.00 |"
    assert said in filled
    drafts = "synchronous; 3 drafts (ngram) | 8.0 | 0.90 (0.80–1.00) |"
    assert drafts in filled, "which drafts are accepted the simulator does not know"
    assert "| predicted within 5 points |  | 0 of 1 | 0 of 1 | 0 of 1 |" in filled
    late = "| Mooncake; 70 %; asynchronous | not run |  |  |  |"
    assert late in filled
    said = "| 2 of all slots; 2 of 4 layers dense | 50 | 50 | 50 | 50 | 50 | 2.0 |"
    assert said in filled
    monkeypatch.setattr(real, "sources", lambda: "others")
    assert bench.measured() == {}, "other sources would take another time"


def test_an_older_trial_needs_its_environment(bench, tmp_path):
    with pytest.raises(ToolError, match="run `make env` there"):
        real.against(bench, Path(tmp_path / "old"), 5)
