"""What `vllm bench dp-balance` writes: advice, tables and files."""

import json

import pytest
from vllm.benchmarks.dp_balance import recommend, simulate
from vllm.benchmarks.dp_balance.metrics import Metrics
from vllm.benchmarks.dp_balance.recommend import advise
from vllm.benchmarks.dp_balance.results import PolicyResult, read_json

from test_dp_balance_input import run

SMALL = [
    *("--num-prompts", "60", "--data-parallel-size", "2"),
    *("--input-len", "800", "--output-len", "uniform:20:60"),
    *("--max-num-seqs", "4"),
]


def result(policy: str, *e2e_ms: float, ttft_p99_ms: float = 1000.0) -> PolicyResult:
    fields = dict.fromkeys(Metrics.__dataclass_fields__, 100.0)
    runs = [
        Metrics(**fields | {"mean_e2el_ms": e2e, "p99_ttft_ms": ttft_p99_ms})  # type: ignore[arg-type]
        for e2e in e2e_ms
    ]
    return PolicyResult(policy, runs)


OFF = result("off", 100.0, 102.0)


def test_advice_names_the_policy_with_the_shortest_requests():
    advice = advise([OFF, result("cap", 90.0, 92.0), result("x", 80.0, 81.0)], None)
    assert advice.startswith("Use --data-parallel-balance x: requests end 20% earlier")


def test_advice_is_to_leave_it_off_when_the_gain_is_small_or_chance():
    small = advise([OFF, result("cap", 99.0, 101.0)], None)
    chance = advise([OFF, result("cap", 80.0, 110.0)], None)
    assert small.startswith("Leave it off: with the best policy, cap,")
    assert chance.startswith("Leave it off")


def test_advice_respects_the_ttft_budget():
    slow_start = result("x", 50.0, 50.0, ttft_p99_ms=9000)
    assert "balance cap" in advise([OFF, slow_start, result("cap", 90.0, 90.0)], 2000)
    assert advise([OFF, slow_start], 2000).startswith("Leave it off: every policy")


def test_simulate_saves_what_is_needed_to_repeat_it(tmp_path, capsys):
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


CONTEXTS = [
    *("--num-prompts", "400", "--data-parallel-size", "4", "--api-server-count", "1"),
    *("--input-len", "lognormal:8000:1.3:90000", "--output-len", "uniform:20:200"),
    *("--cost-preset", "a3-dp4-tp4", "--request-rate", "9", "--num-seeds", "1"),
]


@pytest.mark.parametrize(
    ("role", "said"), [("decode", " adaptive: requests end 1"), ("prefill", ", median")]
)
def test_recommend_advises_for_a_role(role, said, capsys):
    run(recommend, *CONTEXTS, "--role", role, "--policy", "cap", "adaptive")
    *table, last = capsys.readouterr().out.splitlines()
    assert last.startswith("Use --data-parallel-balance")
    assert said in last
    assert ("TPOT" in last) == (role == "decode")
    assert not any("nan" in line for line in table)


def test_recommend_ends_with_one_sentence(capsys):
    run(recommend, *SMALL, "--policy", "cap", "--num-seeds", "1")
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith(("Use --data-parallel-balance cap", "Leave it off"))
    assert last.endswith(".")
