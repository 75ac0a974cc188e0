"""Calibration recovers known constants, and says what the data cannot tell."""

import gzip
import math
import random
import re
from dataclasses import asdict, replace
from datetime import datetime, timedelta

import pytest
from vllm.benchmarks.dp_balance import calibrate, recommend
from vllm.benchmarks.dp_balance import simulate as simulate_command
from vllm.benchmarks.dp_balance.calibration import Calibration
from vllm.benchmarks.dp_balance.errors import UsageError
from vllm.benchmarks.dp_balance.loop import StepRecord
from vllm.benchmarks.dp_balance.rank.limits import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.results import write_json
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload, simulate
from vllm.benchmarks.dp_balance.step_time.fit import Fit, fit
from vllm.benchmarks.dp_balance.step_time.model import CostModel
from vllm.benchmarks.dp_balance.step_time.steps import StepSample, read_server_logs

from test_dp_balance_input import run

VARIED = Workload(300, "lognormal:600:1:4000", "lognormal:150:0.8:1000")


def cost(phi: float, noise: float = 0.05) -> CostModel:
    return CostModel(t0=0.036, a=4e-4, b=2e-4, c=0.03, phi=phi, noise=noise)


def scenario(
    model: CostModel, workload: Workload = VARIED, concurrency: int = 100
) -> Scenario:
    limits = RankLimits(4, 32, 4096)
    return Scenario(limits, model, workload, ClientTraffic(max_concurrency=concurrency))


def samples_of(run: Scenario) -> list[StepSample]:
    samples: list[StepSample] = []

    def keep(step: StepRecord) -> None:
        columns = (tuple(map(float, column)) for column in step.loads[:2])
        samples.append(StepSample(step.seconds, *columns))

    simulate(run, "off", on_step=keep)
    return samples


def fitted(run: Scenario) -> Fit:
    return fit(samples_of(run))


@pytest.mark.parametrize("phi", [0.0, 0.3, 0.6, 0.9])
def test_constants_are_recovered(phi):
    model = cost(phi)
    found = fitted(scenario(model))
    for name in ("t0", "a", "b", "c"):
        estimate, wanted = getattr(found, name), getattr(model, name)
        assert estimate.value == pytest.approx(wanted, rel=0.05), name
        assert abs(estimate.value - wanted) < 2 * estimate.half_width, name
    assert found.phi.value == pytest.approx(phi, abs=0.1)


def test_outliers_do_not_move_the_constants():
    rng, samples = random.Random(0), samples_of(scenario(cost(0.3)))
    outliers = [each.seconds + 0.5 * (rng.random() < 0.01) for each in samples]
    found = fit(
        [one._replace(seconds=s) for one, s in zip(samples, outliers, strict=True)]
    )
    assert found.t0.value == pytest.approx(0.036, rel=0.05)
    assert found.c.value == pytest.approx(0.03, rel=0.10)


def lone(prompts: str) -> Fit:
    """Of a load in which one rank prefills at a time."""
    workload, traffic = Workload(60, prompts, "30"), ClientTraffic(request_rate=0.2)
    return fitted(Scenario(RankLimits(4, 32, 4096), cost(0.5), workload, traffic))


def test_lone_equal_prompts_identify_neither_phi_nor_c():
    found = lone("500")
    assert found.phi.note
    assert found.c.note
    expected = 2e-4 * (0.5 + 0.5 / 4) + 0.03 / 500
    assert found.b.value == pytest.approx(expected, rel=0.05)


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
    assert read(text.rpartition("\n")[0]).samples == [
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
    assert len(read(text).samples) == 3


def test_torn_lines_are_left_out_and_counted(read, capsys):
    text = server_log(9, 30.0, 0.03) + "\n12-31 10:00:00 Iteration(9"
    for whole, torn in (
        ("12-31", "13-31"),
        (": 30.00 ms", ": 30.0.1 ms"),  # of the same step
        ("Iteration(4): 1 context", "Iteration(4): 1 con"),
        ("30.00 ms", "0.00 ms"),  # of the next
    ):
        text = text.replace(whole, torn, 1)
    assert len(read(text).samples) == 6
    said = capsys.readouterr().err
    assert "left out 4 lines that are torn" in said
    assert "left out 1 steps that were not logged by 2 ranks" in said
    assert "left out 1 steps that took 0 ms" in said


def test_lines_of_another_format_are_counted(tmp_path):
    (path := tmp_path / "server.log").write_text(server_log(3, 30, 0.03)[:-9])
    path.write_text(path.read_text().replace("12-31", "2025-12-31T"))
    with pytest.raises(UsageError, match="by 0 ranks, not by 2; 6 lines of steps are"):
        read_server_logs([path], 2)


def test_logs_of_several_days_are_told_by_their_clocks(tmp_path, capsys):
    lines = server_log(300, 30.0, 0.037).splitlines()
    for day, told in (("12-26", True), ("12-31", False)):
        (path := tmp_path / "server.log").write_text(
            "\n".join([*lines[::2], *(x.replace("12-31", day) for x in lines[1::2])])
        )
        assert len(read_server_logs([path], 2).samples) == 300
        assert ("up to 5 days, 0:00:00 apart" in capsys.readouterr().err) is told


def test_a_log_that_gzip_compressed(tmp_path):
    (path := tmp_path / "server.log").write_bytes(
        gzip.compress(server_log(3, 30.0, 0.03).encode())
    )
    assert len(read_server_logs([path], 2).samples) == 3


def test_another_number_of_ranks_is_refused(read):
    with pytest.raises(UsageError, match="most steps were logged by 2 ranks, not by 4"):
        read(server_log(9, 30.0, 0.03), 4)


def test_time_of_the_host_between_steps_is_measured(read):
    found = read(server_log(2000, 30.0, 0.037)).host_seconds
    assert found == pytest.approx(0.007, rel=0.1)


def test_steps_that_overlap_are_refused(tmp_path):
    """As they do with asynchronous scheduling: each is logged from its request on."""
    (path := tmp_path / "server.log").write_text(server_log(2000, 70.0, 0.037))
    with pytest.raises(UsageError, match=r"140 s in 7[34] s overlap; log"):
        read_server_logs([path], 2)


CLOCK = re.compile(r"12-31 10:(\d\d):(\d\d)")


@pytest.mark.parametrize("jump", [-3600, 3600])
def test_time_of_the_host_where_clocks_jump(jump, read):
    """After nine seconds it is New Year, and later the clock is set."""

    def stamp(match: re.Match[str]) -> str:
        seconds = 60 * int(match[1]) + int(match[2])
        clock = datetime(2025, 12, 31, 23, 59, 51) + timedelta(seconds=seconds)
        return f"{clock + timedelta(seconds=jump * (seconds >= 15)):%m-%d %H:%M:%S}"

    text = CLOCK.sub(stamp, server_log(2000, 30.0, 0.037))
    assert read(text).host_seconds == pytest.approx(0.007, abs=1.5 / 2000)


def test_a_short_log_tells_no_time_of_the_host_and_says_so(read, capsys):
    assert read(server_log(150, 30.0, 0.037)).host_seconds == 0.0
    assert "the time between steps is not known" in capsys.readouterr().err


def test_experts_are_recovered():
    model = replace(cost(0.3, noise=0.02), experts=0.03, experts_tokens=16.0)
    found = fitted(scenario(model, concurrency=20))
    for name in ("t0", "b", "experts"):
        wanted = getattr(model, name)
        assert getattr(found, name).value == pytest.approx(wanted, rel=0.2), name
    assert found.experts_tokens == 16.0
    assert found.phi.value == pytest.approx(0.3, abs=0.1)


def test_intervals_of_several_steps_do_as_well():
    joined, waited = [], 0.0
    for number, sample in enumerate(samples_of(scenario(cost(0.3, noise=0.0)))):
        ends = number % 3 == 0
        waited += sample.seconds
        seconds = waited if ends else 0.0
        joined.append(sample._replace(seconds=seconds, ends_interval=ends))
        waited = 0.0 if ends else waited
    found = fit(joined)
    assert found.b.value == pytest.approx(2e-4, rel=0.05)
    assert found.phi.value == pytest.approx(0.3, abs=0.1)


def test_what_is_not_identified_has_a_range_and_the_cautious_end_is_used():
    found = lone("uniform:100:900")
    phis = [model.phi for model in found.costs]
    assert phis == pytest.approx([0.0, 0.95])
    assert found.cost.phi == max(phis), "policies gain least there"
    # One rank's prompt costs the same by both: b·(1 - phi + phi / 4) per token.
    costs = [model.b * (1 - model.phi * 3 / 4) for model in found.costs]
    assert costs[0] == pytest.approx(costs[1], rel=0.02)


DROPPED = {"a": "decodes", "b": "prefill"}


# JSON has no NaN; some write it.
@pytest.mark.parametrize("null", ["null", "NaN"])
@pytest.mark.parametrize("name", DROPPED)
def test_what_no_step_tells_is_unknown_and_not_used(name, null, tmp_path, capsys):
    samples = samples_of(scenario(cost(0.3)))
    without = [one._replace(**{DROPPED[name]: (0.0,) * 4}) for one in samples]
    found = fit(without)
    assert math.isnan(getattr(found, name).value)
    calibrate.print_fit(found)
    assert re.search(rf"^{name} +- +\?", capsys.readouterr().out, re.M)
    document = {"format": "dp-balance calibrate", "format_version": 1}
    write_json(path := tmp_path / "mine.json", document | {"fit": asdict(found)})
    path.write_text(path.read_text().replace("null", null))
    options = f"--num-prompts 40 --output-len 9 -dp 4 --policy off --calibration {path}"
    with pytest.raises(UsageError, match=f"{name} is not known .no step"):
        run(simulate_command, *options.split())
    run(simulate_command, *options.split(), "--cost", f"{name}=1e-4")


def test_recommend_shows_the_range_and_warns(tmp_path, capsys):
    found = lone("uniform:100:900")
    document = {"format": "dp-balance calibrate", "format_version": 1}
    write_json(path := tmp_path / "mine.json", document | {"fit": asdict(found)})
    assert len(Calibration.read(path).costs) == 2
    options = "--policy align --num-prompts 150 --num-seeds 1 --output-len 100 -dp 4 "
    options += "--max-num-seqs 8"
    run(recommend, *options.split(), "--calibration", str(path))
    printed = capsys.readouterr()
    low, high = map(
        float, re.findall(r"align: ([+-][\d.]+)% to ([+-][\d.]+)%", printed.out)[0]
    )
    assert low < high
    assert f"requests end {low:.0f}% earlier" in printed.out.replace(" .", ".") or (
        "Leave it off" in printed.out
    ), "the advice rests on the least gain"
    assert "--max-num-seqs 8: the calibration saw at most" in printed.err
