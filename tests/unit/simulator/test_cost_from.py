"""Calibration learns known constants, and says what the data cannot tell."""

import json
import re
from dataclasses import replace

import pytest
from vllm.benchmarks.dp_balance import calibrate
from vllm.benchmarks.dp_balance import simulate as simulate_command
from vllm.benchmarks.dp_balance.errors import UsageError
from vllm.benchmarks.dp_balance.loop import StepRecord
from vllm.benchmarks.dp_balance.rank.limits import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload, simulate
from vllm.benchmarks.dp_balance.step_time.learned import cost_of_server, learn
from vllm.benchmarks.dp_balance.step_time.model import CostModel
from vllm.benchmarks.dp_balance.step_time.steps import StepSample, read_server_logs

from small_server import answering
from verbs import run

COST = CostModel(t0=0.036, a=4e-4, b=2e-4, c=0.03, noise=0.05)


def samples_of(cost: CostModel) -> list[StepSample]:
    """The steps of a load that varies."""
    samples: list[StepSample] = []

    def keep(step: StepRecord) -> None:
        columns = (tuple(map(float, column)) for column in step.loads[:2])
        samples.append(StepSample(step.seconds, *columns))

    workload = Workload(300, "lognormal:600:1:4000", "lognormal:150:0.8:1000")
    scenario = Scenario(RankLimits(4, 32, 4096), cost, workload, ClientTraffic(100))
    simulate(scenario, "off", on_step=keep)
    return samples


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.6, 0.9])
def test_constants_are_learned(phi):
    """Within what the learner of `adaptive` is good for: the last hundred steps."""
    found = learn(samples_of(replace(COST, phi=phi)))
    assert found.t0 == pytest.approx(COST.t0, rel=0.1)
    assert found.a == pytest.approx(COST.a, rel=0.1)
    assert found.b == pytest.approx(COST.b, rel=0.2)
    assert found.c == pytest.approx(COST.c, rel=0.2)
    assert found.phi == pytest.approx(phi, abs=0.15)


def test_decodes_that_never_vary_are_in_t0():
    samples = [
        StepSample(
            0.05 + 1e-4 * 300 * (n % 5 == 0), (300.0 * (n % 5 == 0), 0.0), (8, 8)
        )
        for n in range(200)
    ]
    found = learn(samples)
    assert (found.a, found.t0) == (0.0, pytest.approx(0.05))
    assert found.c + 300 * found.b == pytest.approx(0.03, rel=0.05)


def server_log(steps: int, step_ms: float, period_s: float) -> str:
    """Two ranks; the second starts each step a millisecond after the first."""
    return "\n".join(
        f"(EngineCore_DP{rank} pid=7) INFO 12-31 10:{int(index * period_s) // 60:02}:"
        f"{int(index * period_s) % 60:02} [core.py:428] Iteration({index}): 1 context "
        f"requests, {10 * rank} context tokens, {index} generation requests, {index} "
        f"generation tokens, iteration elapsed time: {step_ms + 1 - rank:.2f} ms"
        for index in range(steps)
        for rank in range(2)
    )


@pytest.fixture
def read(tmp_path):
    def read(log, ranks=2):
        (path := tmp_path / "server.log").write_text(log)
        return read_server_logs([path], ranks)

    return read


def test_server_log_is_read(read):
    text = server_log(3, 30.0, 0.03)
    assert read(text.rpartition("\n")[0])[0] == [
        StepSample(0.030, (0.0, 10.0), (0.0, 0.0)),
        StepSample(0.030, (0.0, 10.0), (1.0, 1.0)),
    ], "the third step was not logged by both ranks"


RANK = "(EngineCore_DP{} pid=7) ".format


@pytest.mark.parametrize(
    "changes",
    [
        {"Iteration(": "Engine 001: Iteration(", " ms": " ms, KV cache"},
        {RANK(1): "", RANK(0): RANK(0) + RANK(1)},
        {" [": "\x1b[0m \x1b[90m[", "]": "]\x1b[0m", "12-31": "\x1b[90m12-31"},
    ],
    ids=["of later releases", "that ranks write at once", "in colours"],
)
def test_lines_are_read(read, changes):
    text = server_log(3, 30.0, 0.03)
    for old, new in changes.items():
        text = text.replace(old, new)
    assert len(read(text)[0]) == 3


def test_what_is_torn_is_left_out_and_counted(read, capsys):
    text = server_log(9, 30.0, 0.03) + "\n12-31 10:00:00 Iteration(9"
    for whole, torn in (
        (": 30.00 ms", ": 30.0.1 ms"),
        ("Iteration(4): 1 context", "Iteration(4): 1 con"),
        ("30.00 ms", "0.00 ms"),
    ):
        text = text.replace(whole, torn, 1)
    assert len(read(text)[0]) == 6
    said = capsys.readouterr().err
    assert "left out 5 lines that are torn or steps that were not logged by 2" in said


def test_another_number_of_ranks_is_refused(read):
    with pytest.raises(UsageError, match="most steps were logged by 2 ranks, not by 4"):
        read(server_log(9, 30.0, 0.03), 4)


def test_time_of_the_host_between_steps_is_measured(read):
    found = read(server_log(2000, 30.0, 0.037))[1]
    assert found == pytest.approx(0.007, rel=0.1)


def test_steps_that_overlap_are_refused(tmp_path):
    """As they do with asynchronous scheduling: each is logged from its request on."""
    (path := tmp_path / "server.log").write_text(server_log(2000, 70.0, 0.037))
    with pytest.raises(UsageError, match=r"1[89].* s in 10 s overlap; log"):
        read_server_logs([path], 2)


def test_a_short_log_tells_no_time_of_the_host_and_says_so(read, capsys):
    assert read(server_log(150, 30.0, 0.037))[1] == 0.0
    assert "the time between steps is not known" in capsys.readouterr().err


LEARNED = {
    "decode": 0.05,
    "fixed": 0.01,
    "own": 0.6,
    "shared": 0.2,
    "padding": 0.0,
    "attention": 0.16,
}


def page(learned: dict[str, float]) -> str:
    name = "vllm:dp_balance_step_cost_seconds"
    of_ranks = (
        f'{name}{{engine="{rank}",part="{part}"}} {seconds + 0.01 * rank - 0.005}\n'
        for part, seconds in learned.items()
        for rank in (0, 1)
    )
    gauge = 'vllm:num_requests_running{engine="0"} 0.0\n'
    return f"# TYPE {name} gauge\n{''.join(of_ranks)}# TYPE x gauge\n{gauge}"


def test_what_a_server_has_learned_is_taken(tmp_path, capsys):
    with answering(lambda *_: page(LEARNED)) as url:
        found = cost_of_server(url, 4000)
        save = f"--save-result --result-dir {tmp_path} --result-filename a.json"
        load = "--num-prompts 40 --output-len 9 --policy off --cost phi=0.5"
        options = f"{load} --max-num-batched-tokens 4000 --cost-from {url} {save}"
        run(simulate_command, *options.split())
    assert (found.t0, found.a, found.b) == pytest.approx((0.05, 0, 2e-4))
    assert (found.c, found.attention, found.phi) == pytest.approx((0.01, 1e-8, 0.25))
    assert found.padded == 0
    used = json.loads((tmp_path / "a.json").read_text())["scenario"]["cost"]
    assert (used["b"], used["phi"]) == (pytest.approx(2e-4), 0.5)


def test_a_server_that_has_learned_nothing_is_refused():
    with (
        answering(lambda *_: page({})) as url,
        pytest.raises(UsageError, match=f"{url}/metrics: has no .* adaptive"),
    ):
        cost_of_server(url, 4096)


def test_what_a_trial_has_learned_is_taken(tmp_path):
    report = tmp_path / "report.json"
    head = {"format": "dp-balance trial", "format_version": 1}
    report.write_text(json.dumps({**head, "learned_seconds": LEARNED}))
    found = cost_of_server(str(report), 4000)
    assert (found.t0, found.b) == pytest.approx((0.05, 2e-4))
    report.write_text(json.dumps({**head, "learned_seconds": {}}))
    expected = f"{report}: has no learned_seconds of all parts; .* adaptive"
    with pytest.raises(UsageError, match=expected):
        cost_of_server(str(report), 4000)
    with pytest.raises(UsageError, match="none: is no address of a server"):
        cost_of_server(str(tmp_path / "none"), 4000)


def test_calibrate_saves_what_simulate_takes(tmp_path, capsys):
    lines = (
        f"12-31 10:00:{n // 20:02} [core.py:1] Iteration({n}): 1 context requests, "
        f"{100 * (n % 4 == 0) * rank} context tokens, {n % 7} generation requests, 1 "
        f"generation tokens, iteration elapsed time: {40 + 50 * (n % 4 == 0)} ms"
        for n in range(400)
        for rank in (0, 1)
    )
    (log := tmp_path / "server.log").write_text("\n".join(lines))
    save = f"--save-result --result-dir {tmp_path} --result-filename mine.json"
    run(calibrate, *f"-dp 2 --server-log {log} {save}".split())
    said = capsys.readouterr().out
    assert re.search(r"^t0 +40 +ms", said, re.M)
    assert "400 steps, of which the model is " in said
    load = "--num-prompts 40 --output-len 9 --policy off --calibration"
    run(simulate_command, *load.split(), str(tmp_path / "mine.json"))


@pytest.mark.parametrize(
    ("prompts", "said"), [(0, "no step prefills"), (9, "no step only decodes")]
)
def test_a_log_without_one_kind_of_step_is_refused(prompts, said, tmp_path):
    text = server_log(200, 30.0, 0.04)
    text = re.sub(r"\d+ context tokens", f"{prompts} context tokens", text)
    (log := tmp_path / "server.log").write_text(text)
    with pytest.raises(UsageError, match=f"{said}; run a load that varies"):
        run(calibrate, *f"-dp 2 --server-log {log}".split())
