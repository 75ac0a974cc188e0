"""The demo says what its figures say, also on a machine that is too slow for it."""

from dataclasses import replace

import pytest
from matplotlib import image

from balance_tools.demo import picture
from balance_tools.demo.load import (
    DEVICE,
    RANKS,
    STEADY,
    Run,
    Step,
    check,
    compare,
    read_steps,
    steady_throughput,
    waiting_share,
)
from balance_tools.errors import ToolError

BY_RANKS, BY_FRONT_END = "EngineCore_DP{rank} ", "MainProcess Engine 00{rank}: "
LINE = (
    "Iteration(7): 1 context requests, {prefill} context "
    "tokens, {decodes} generation requests, 4 generation tokens, iteration elapsed "
    "time: {ms} ms"
)


def a_run(policy: str, throughput: float, gap: float = 0.005) -> Run:
    """Two hundred steps of 0.1 s on each rank; rank 0 has a prompt in each tenth."""
    steps = []
    for number in range(200):
        start = number * (0.1 + gap)
        for rank in range(RANKS):
            prompt = 20 if rank == 0 and number % 10 == 0 else 0
            own = 0.1 if prompt else 0.052
            steps.append(Step(rank, start, start + 0.1, prompt, 2, own))
    bench = {
        "completed": 10,
        "failed": 0,
        STEADY: throughput,
        "mean_tpot_ms": 1e4 / throughput,
        "mean_e2el_ms": 1e6 / throughput,
        "median_ttft_ms": 5 * throughput,
        "p99_ttft_ms": 4000.0,
    }
    held = {} if policy == "off" else dict.fromkeys(range(RANKS), 3.0)
    return Run(policy, bench, tuple(steps), held)


@pytest.mark.parametrize("who", [BY_RANKS, BY_FRONT_END])
def test_steps_are_read_from_a_log(tmp_path, who):
    log = tmp_path / "steps.log"
    one, other = who.format(rank=0), who.format(rank=1)
    log.write_text(
        f"105.0 {one}{LINE.format(prefill=100, decodes=4, ms=200.0)}\n"
        "104.9 MainProcess Application startup complete.\n"
        f"105.0 {other}{LINE.format(prefill=0, decodes=8, ms=190.0)}\n"
        f"105.1 {other}{LINE.format(prefill=0, decodes=0, ms=100.0)} (dummy)\n"
    )
    first, second = read_steps(log, DEVICE)
    assert (first.rank, first.start, first.end) == (0, 0, pytest.approx(0.2))
    assert first.own_s == pytest.approx(0.05 + 4 * 0.001 + 0.04 + 100 * 0.0005)
    assert second.start == pytest.approx(0.01)
    assert second.own_s == pytest.approx(0.058)
    assert second.waits_s == pytest.approx(0.19 - 0.058)
    waited = first.waits_s + second.waits_s
    assert waiting_share([first, second]) == pytest.approx(waited / 0.39)


def test_a_log_without_steps_is_an_error(tmp_path):
    log = tmp_path / "steps.log"
    log.write_text("104.9 MainProcess Application startup complete.\n")
    with pytest.raises(ToolError, match="expected the steps of the ranks, found none"):
        read_steps(log, DEVICE)


def test_throughput_counts_until_the_last_request_is_sent():
    bench = {"start_times": [10.0, 14.0], "ttfts": [1.0, 1.0], "itls": [[1, 1, 2], []]}
    assert steady_throughput(bench) == 3 / 4  # at 11, 12 and 13 s; not at 15 s
    assert steady_throughput({"start_times": [1], "ttfts": [1], "itls": [[1]]}) == 0


def test_the_picture_shows_the_same_seconds_of_both(tmp_path):
    runs = [a_run("off", 200), a_run("adaptive", 260)]
    pixels = image.imread(picture.plot(runs, tmp_path / "demo.png"))
    assert pixels.shape[1] > 1000
    # Both colours of work are there.
    for colour in (picture.PROMPT, picture.TOKENS):
        wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert (abs(pixels[..., :3] - wanted).max(axis=-1) < 0.01).sum() > 500


@pytest.mark.parametrize(
    ("policy", "changes", "found"),
    [
        ("off", {"held_steps": {0: 1.0}}, "no metric of a gate"),
        ("adaptive", {"held_steps": {}}, "to hold prompts"),
        ("adaptive", {"held_steps": dict.fromkeys(range(RANKS), 0.0)}, "to hold promp"),
        ("off", {"bench": {"failed": 2, "completed": 8}}, "found 2 failed"),
    ],
)
def test_what_the_demo_must_not_pass_over(policy, changes, found):
    with pytest.raises(ToolError, match=found):
        check(replace(a_run(policy, 1), **changes))


def test_answers_are_compared(capsys):
    compare({"off": {"a": "x", "b": "y"}, "adaptive": {"a": "x", "b": "y"}})
    assert "All 2 answers are equal with off and adaptive" in capsys.readouterr().out
    with pytest.raises(ToolError, match="'b' to be answered with adaptive as with off"):
        compare({"off": {"a": "x", "b": "y"}, "adaptive": {"a": "x", "b": "z"}})
