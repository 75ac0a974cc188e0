"""What `vllm-balance` writes: advice, tables and files."""

import json
from dataclasses import replace

import pytest

from verbs import run
from vllm_balance.simulator import recommend, simulate
from vllm_balance.simulator.metrics import Metrics
from vllm_balance.simulator.recommend import advise
from vllm_balance.simulator.results import PolicyResult, read_json, table_rows


def result(policy: str, *e2e_ms: float, **figures: float | None) -> PolicyResult:
    """Of requests that are sent for 100 s."""
    every = dict.fromkeys(Metrics.__dataclass_fields__, 100.0) | figures
    names = ("mean_e2el_ms", "steady_mean_e2el_ms")
    runs = [Metrics(**every | dict.fromkeys(names, e2e)) for e2e in e2e_ms]  # type: ignore[arg-type]
    return PolicyResult(policy, runs)


OFF = result("off", 100.0, 102.0)


def test_advice_names_the_policy_with_the_shortest_requests():
    advice = advise([OFF, result("cap", 90.0, 92.0), result("align", 80.0, 81.0)], None)
    expected = "Use --data-parallel-balance align: requests end 20% earlier"
    assert advice.startswith(expected)


@pytest.mark.parametrize("e2e_ms", [(99.0, 101.0), (80.0, 110.0)])
def test_advice_is_to_leave_it_off_when_the_gain_is_small_or_chance(e2e_ms):
    advice = advise([OFF, result("cap", *e2e_ms)], None)
    assert advice.startswith("Leave it off: with the best policy, cap,")


def test_advice_respects_the_ttft_budget():
    slow_start = result("align", 50.0, 50.0, steady_p99_ttft_ms=9000)
    assert "balance cap" in advise([OFF, slow_start, result("cap", 90.0, 90.0)], 2000)
    assert advise([OFF, slow_start], 2000).startswith("Leave it off: every policy")


def test_no_advice_from_sessions_that_all_begin_or_end_the_run():
    few = result("align", 50.0, 50.0, first_turn=2, steady_duration=1e9)
    assert "Use" in advise([OFF, few], None)
    without = replace(few.runs[0], steady_mean_e2el_ms=None)
    assert advise([OFF, PolicyResult("align", [without] * 2)], None).startswith(
        "No advice"
    )


def test_no_policy_is_advised_whose_throughput_falls():
    fewer = result("align", 50.0, 50.0, steady_output_throughput=90.0)
    assert "balance cap" in advise([OFF, fewer, result("cap", 90.0, 90.0)], None)
    assert advise([OFF, fewer], None).startswith("Leave it off: with every policy")
    for seconds, said in ((100.0, "Leave it off: with every"), (1.0, "Use")):
        opened = {"first_turn": 0, "steady_duration": seconds}
        off = result("off", 100.0, **opened)
        ends_later = result("align", 80.0, output_throughput=95.0, **opened)
        assert advise([off, ends_later], None).startswith(said)


def test_throughput_of_an_open_loop_is_that_of_the_whole_run():
    """Requests may be sent in a short part of it."""
    opened = {"first_turn": 0, "steady_output_throughput": 1.0}
    off = result("off", 100.0, **opened)
    best = result("align", 50.0, **opened | {"steady_output_throughput": 2.2})
    assert "tok/s" not in advise([off, best], None)
    assert table_rows([off, best])[2][-1] == "+0.0%"
    assert table_rows([off, best])[2][2] == "-"
    closed = result("align", 50.0, 50.0, steady_output_throughput=250.0)
    said = advise([OFF, closed], None)
    assert "steady tok/s +150%" in said, "named as its column is"
    assert "first and last requests not counted" in said
    said = advise([off, result("align", 50.0, output_throughput=250.0, **opened)], None)
    assert "output tok/s +150%" in said
    assert "not counted" not in said


SHORT = "-dp 2 --max-num-seqs 4 --input-len 600 --output-len 20 --num-seeds 1 "


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ("--num-prompts 1 --output-len 1", "give --num-prompts 64 or more"),
        ("--num-prompts 3 --request-rate 100", "a longer window of the trace"),
        ("--num-prompts 999 --request-rate 1000", "fewer per second if the ranks"),
    ],
)
def test_no_advice_and_no_figure_where_nothing_is_steady(
    options, what, capsys, tmp_path
):
    saved = f"--policy align --save-result --result-dir {tmp_path} --result-filename r"
    run(recommend, *SHORT.split(), *options.split(), *saved.split())
    printed = capsys.readouterr().out
    assert "No advice, because nothing is steady" in printed
    assert what in printed
    assert "nan" not in printed
    document = json.loads((tmp_path / "r").read_text(), parse_constant=pytest.fail)
    assert document["scenario"]["traffic"]["request_rate"] in (None, 100.0, 1000.0)
    run(simulate, *SHORT.split(), *options.split())
    assert what in capsys.readouterr().err


def test_advice_holds_for_a_longer_run(capsys):
    """All that is in flight is sent at once: with align it waits, once, for nothing.

    12,000 prompts say the same as the 4,096 of the default.
    """
    options = "-dp 4 --max-num-seqs 128 --input-len 600 --output-len 20 --num-seeds 1"
    run(recommend, *options.split(), "--policy", "align")
    assert capsys.readouterr().out.splitlines()[-1].startswith("Leave it off")


def test_answers_of_one_token_have_no_time_per_token(capsys):
    few = "-dp 2 --max-num-seqs 4 --num-prompts 64 --num-seeds 1 --output-len 1"
    run(recommend, *few.split(), "--input-len", "uniform:9:4000", "--policy", "cap")
    printed = capsys.readouterr().out
    assert "nan" not in printed
    assert printed.splitlines()[2].split()[3] == "-"


def test_simulate_saves_what_is_needed_to_repeat_it(tmp_path, capsys):
    """Where no number is given, so many as follow eight times what is in flight."""
    options = f"--save-result --result-dir {tmp_path} --result-filename r.json"
    options += " --policy off --num-seeds 2 -dp 8 --max-num-seqs 64 --input-len 9"
    run(simulate, *options.split(), "--output-len", "uniform:1:3")
    printed = capsys.readouterr()
    assert printed.out.startswith("policy ")
    assert printed.err == "", "no progress bar unless standard error is a terminal"
    document = read_json(tmp_path / "r.json", "simulate")
    assert {"command", "versions", "date", "scenario"} <= document.keys()
    assert document["seeds"] == [0, 1]
    text = (tmp_path / "r.json").read_text()
    assert json.loads(text)["results"][0]["runs"][1]["completed"] == 4096


CONTEXTS = (
    "--num-prompts 400 --data-parallel-size 4 --api-server-count 1 --num-seeds 1 "
    "--input-len lognormal:8000:1.3:90000 --output-len uniform:20:200 "
    "--cost-preset a3-dp4-tp4"
)


@pytest.mark.parametrize(
    ("role", "rate", "said"),
    [("decode", "9", " adaptive: requests end 1"), ("prefill", "0.4", ", median")],
)
def test_recommend_advises_for_a_role(role, rate, said, capsys):
    given = ("--role", role, "--request-rate", rate, "--policy", "cap", "adaptive")
    run(recommend, *CONTEXTS.split(), *given)
    *table, last = capsys.readouterr().out.splitlines()
    assert last.startswith("Use --data-parallel-balance")
    assert said in last
    assert ("TPOT" in last) == (role == "decode")
    assert not any("nan" in line for line in table)


def test_limits_show_the_share_within_them_and_what_a_server_is_told(capsys):
    limits = "--data-parallel-balance-ttft-ms 2000 --data-parallel-balance-tpot-ms 100"
    load = "--num-prompts 300 --input-len 2000 --output-len 60 --max-num-seqs 8"
    run(recommend, *f"{load} --num-seeds 1 --policy adaptive {limits}".split())
    shown = capsys.readouterr().out
    assert shown.splitlines()[0].split()[-2:] == ["within", "gain"]
    assert f"Use --data-parallel-balance adaptive {limits}: requests end" in shown
    assert "within the limits." in shown
