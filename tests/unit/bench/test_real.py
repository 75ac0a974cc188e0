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

PROGRAM = '''#!{python}
"""Runs a turn of each policy, or predicts what decodes cost; both take no time."""
import json, os, sys, time
from pathlib import Path
words = sys.argv[1:]
value = lambda name: words[words.index(name) + 1]
folder = Path(value("--result-dir"))
at = words.index("--policy") + 1
policies = ["off", "cap", "align", "adaptive"]
if words[0] == "simulate":
    costs = json.loads(Path(value("--cost-from")).read_text())
    runs = [{{"mean_e2el_ms": 1e3 * costs["decode_seconds"]["alone"]}}]
    asked = [each for each in words[at:at + 4] if each in policies]
    found = [{{"policy": each, "runs": runs}} for each in asked]
    (folder / "predicted.json").write_text(json.dumps({{"results": found}}))
    folder.with_name("words").write_text("\\n".join(words))
    sys.exit()
assert words[at:at + 4] == policies
(folder / "turns").mkdir(parents=True, exist_ok=True)
rounds = int(value("--rounds"))
for number in range(4 * rounds):
    turn = folder / "turns" / f"{{number + 1:02}}-{{policies[number % 4]}}.json"
    if not turn.exists():
        saved = {{"start_times": [0.0] * 16 + [10.0] * 12 + [20.0] * 12}}
        saved |= {{"input_lens": [700] * 40, "output_lens": [50] * 40, "completed": 40}}
        saved |= {{"total_input_tokens": 28000, "total_output_tokens": 2000}}
        saved["date"] = "20261127-235900"
        turn.write_text(json.dumps(saved))
        time.sleep(1)
runs = {{each: [9.0] * rounds for each in {figures}}}
ratios = {{"mean_e2el_ms": {{"mean": 0.9, "low": 0.8, "high": 1.0}}}}
report = {{
    "date": "2026-11-28", "requests": 40, "exchange_us": 2000.0,
    "versions": {{"balance": "abc"}}, "waiting_share": {{"off": 0.2, "adaptive": None}},
    "learned_seconds": dict.fromkeys(
        ["decode", "own", "shared", "padding", "attention"], 0.05
    ),
    "decode_seconds": {{"alone": 0.04, "each": 0.0123}},
    "prompt_seconds": {{"fixed": 0.001, "own": 0.0008, "shared": 0.0004}},
    "slowness": {{
        "off": [1.0] * rounds, "cap": [1.1, 1.2, 1.3][:rounds],
        "align": [None] * rounds, "adaptive": [0.9] * rounds,
    }},
    "policies": {{each: {{"runs": runs, "ratios": ratios}} for each in policies}},
}}
(folder / "report").mkdir(exist_ok=True)
(folder / "report" / "report.json").write_text(json.dumps(report))
'''


@pytest.fixture
def bench(tmp_path, monkeypatch):
    """One whose server takes a second for a turn, and whose models are there."""
    program = tmp_path / "bin/vllm-balance"
    program.parent.mkdir()
    program.write_text(PROGRAM.format(python=sys.executable, figures=real.FIGURES))
    program.chmod(0o755)
    monkeypatch.setattr(ranks, "make_model", lambda *_: tmp_path)
    python = program.with_name("python")
    return lambda minutes: real.Bench(python, tmp_path / "kept", 2, 1, minutes)


def no_bar():
    """Counts nothing."""


def test_no_turn_begins_after_the_time_and_none_is_lost(bench):
    cell, soon = real.Cell(), bench(0.01)
    assert not soon.make(cell, 1, no_bar)
    kept = [path.name for path in real.results_in(soon.path(cell))]
    assert kept[:1] == ["01-off.json"]
    assert len(kept) < 4
    assert soon.summary(cell)["rounds"] == 0, "of whole rounds alone something is said"
    turns = []
    assert bench(1).make(cell, 1, lambda: turns.append(1))
    assert len(turns) == 4 - len(kept)
    assert bench(1).summary(cell)["rounds"] == 1


def test_a_trace_comes_at_its_times_with_what_off_serves_with_all_slots(bench):
    full, late = real.Cell("Azure conv"), real.Cell("Azure conv", 0.9)
    assert not bench(1).make(late, 1, no_bar), "nobody knows yet what off serves"
    assert bench(1).make(full, 1, no_bar)
    assert bench(1).make(late, 1, no_bar)
    trace = bench(1).path(late).with_suffix(".jsonl")
    rows = [json.loads(line) for line in trace.read_text().splitlines()]
    # 24 of 40 requests of `off` were sent in 20 s as others ended.
    assert 39 / rows[-1]["timestamp"] == pytest.approx(0.9 * 24 / 20, rel=0.01)
    assert rows[0]["timestamp"] == 0
    own = real.rows_of(real.WINDOWS["Azure conv"], 40)
    assert rows[0]["input_length"] == own[0].prompt // 4
    assert statistics.fmean(len(row["hash_ids"]) for row in rows) > 10
    shared = [set(row["hash_ids"]) & set(rows[0]["hash_ids"]) for row in rows[1:]]
    assert not any(shared)


def test_requests_that_were_sent_at_other_times_are_no_cell(bench, monkeypatch):
    """vLLM's client keeps the times of a trace unless it is told not to, and then what
    is predicted is of another load."""
    sent = ranks.replayed(Path("trace"), 40, 16, clients=16).sent
    assert "--no-self-timed" in sent
    monkeypatch.setattr(real, "CLIENTS", 9)  # of 18, two are sent after 10 s
    with pytest.raises(ToolError) as error:
        bench(1).make(real.Cell("Azure conv"), 1, no_bar)
    assert "expected 18 requests within 2 s of the first" in str(error.value)
    assert "01-off.json" in str(error.value)


def test_the_model_is_smaller_where_cores_are_slow(monkeypatch):
    for flags, hidden in ("fpu avx2 avx512f", 1024), ("fpu avx2", 768):
        cpu = {"flags": flags, "model name": "X", "cpu family": "25", "model": "1"}
        monkeypatch.setattr(ranks, "_cpu", lambda cpu=cpu: cpu)
        assert ranks.hidden_size() == hidden
    assert " cores of X (family 25, model 1), " in ranks.machine()
    monkeypatch.setattr(ranks, "_cpu", dict)
    assert " cores of " in ranks.machine(), "nor does it fail without Linux"


def test_what_is_predicted_has_the_lengths_that_were_sent(bench):
    full = real.Cell("Azure conv")
    assert bench(1).make(full, 1, no_bar)
    path = bench(1).path(full)
    made, sent = (
        [json.loads(line) for line in path.with_suffix(suffix).read_text().splitlines()]
        for suffix in (".jsonl", ".sent.jsonl")
    )
    assert [row["timestamp"] for row in sent] == [row["timestamp"] for row in made]
    assert {row["input_length"] for row in sent} == {700}
    assert {len(row["hash_ids"]) for row in sent} == {math.ceil(700 / real.CHUNK)}
    assert not set(sent[0]["hash_ids"]) & set(sent[1]["hash_ids"])
    assert bench(1).summary(full)["prompt"] == 700
    assert bench(1).summary(full)["date"] == "2026-11-27", "when it was measured"
    for words in (path.with_name("words"), path / "predicted" / "words"):
        assert str(path.with_suffix(".sent.jsonl")) in words.read_text().splitlines()


def test_prompts_of_a_trace_are_as_long_as_it_says(tmp_path):
    """vLLM makes as many tokens as the hash ids stand for, and no more than asked."""
    for name, window in real.WINDOWS.items():
        real.write_trace(tmp_path / name, window, 80, 1.0)
        lines = (tmp_path / name).read_text().splitlines()
        for row in map(json.loads, lines):
            assert len(row["hash_ids"]) * real.CHUNK >= row["input_length"]


def test_the_table_says_what_was_not_run(bench):
    cells = [real.Cell(), real.Cell("Mooncake", 0.9, asynchronous=True)]
    assert bench(1).make(cells[0], 3, no_bar)
    found = json.loads(json.dumps([bench(1).summary(cell) for cell in cells]))
    page = "<!-- table real -->\n<!-- end -->\n<!-- table real_costs -->\n<!-- end -->"
    results = {"real-a": {"machine": "one core", "layers": 4, "step tokens": 1024}}
    results["real-a"]["cells"] = found
    filled = tables.filled(page, results)
    assert filled.count("| **one core** |") == 2
    first = "| 80–720 → 10–86; all slots; synchronous | 0.0 |"
    said = (f"0.90 (0.80–1.00) / 1.00 / {x:.2f} |" for x in (1.2, 1.0, 0.9))
    assert " ".join((first, *said)) in filled
    assert "| within 5 points, with the same costs in all turns |  | 0 of 1 |" in filled
    own = "| within 5 points, with those of each turn |  | 0 of 1 | 0 of 1 | 1 of 1 |"
    assert own in filled
    late = "| Mooncake, divided; 90 %; asynchronous | not run |  |  |  |"
    assert late in filled
    log = "40 + 12.3 n | 819, 410"
    assert f"| 50 | 50 | 50 | 50 | 50 | {log} | 2.0 | 20% → unknown |" in filled


def test_what_is_known_is_written_whenever_a_cell_is_done(bench, tmp_path, monkeypatch):
    monkeypatch.setattr(real, "RESULTS", tmp_path / "results")
    real.RESULTS.mkdir()
    monkeypatch.setattr(tables, "fill", lambda _: None)
    cells = [real.Cell(), real.Cell("Mooncake")]
    assert real.write(bench(1), cells) == 0
    path = real.result_of(bench(1))
    assert not path.exists()
    assert bench(1).make(cells[0], 1, no_bar)
    assert real.write(bench(1), cells) == 1
    found = json.loads(path.read_text(encoding="utf-8"))
    assert [cell["rounds"] for cell in found["cells"]] == [1, 0]
    assert found["machine"] == ranks.machine()
    assert found["versions"] == {"balance": "abc"}


def test_each_cell_is_run_once_before_any_is_three_times():
    every = list(real.cells())
    assert real.pieces(every) == [(cell, n) for n in (1, 3) for cell in every]
    assert len(set(every)) == len(every)
    assert {cell.dense_layers for cell in every} == {0, 2, 3}
