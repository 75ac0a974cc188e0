"""The trial's own parts: order, folder, verdict, what the report shows and hides."""

import json
import math
import random
import shlex
import statistics
from pathlib import Path

import pytest
from matplotlib import image
from vllm.benchmarks.dp_balance.errors import UsageError
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.requests.request import SimRequest
from vllm.benchmarks.dp_balance.requests.workload import Workload
from vllm.benchmarks.dp_balance.step_time.model import CostModel
from vllm.benchmarks.dp_balance.trial import (
    command,
    load_options,
    picture,
    replay,
    report,
    turns,
)
from vllm.benchmarks.dp_balance.trial.figures import figures_of, steady_throughput
from vllm.benchmarks.dp_balance.trial.plan import Plan
from vllm.benchmarks.dp_balance.trial.steps import (
    Step,
    read_steps,
    spaced,
    waiting_share,
)
from vllm.benchmarks.dp_balance.trial.verdict import Ratio, sentence, t95

COST = CostModel(t0=0.05, a=0.001, b=0.0005, c=0.04)
APART = "cannot be told apart"

# ---- Order and folder


def test_what_drifts_meets_all_policies_alike():
    found = turns.order(["off", "adaptive"], 4)
    assert [turn.policy[0] for turn in found] == list("oaaooaao")
    assert [turn.round for turn in found] == [0, 0, 1, 1, 2, 2, 3, 3]
    # More rounds leave those before as they were.
    assert turns.order(["off", "adaptive"], 2) == found[:4]


def test_a_folder_goes_on_with_its_own_trial_only(tmp_path):
    folder = turns.Folder(tmp_path / "out")
    folder.prepare({"load": ["a"]})
    folder.prepare({"load": ["a"]})
    with pytest.raises(UsageError, match="turns of another trial"):
        folder.prepare({"load": ["b"]})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(UsageError, match="is not empty, and not of a trial"):
        turns.Folder(tmp_path / "mine").prepare({})


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path, monkeypatch):
    folder = turns.Folder(tmp_path)
    folder.write(tmp_path / "a.json", {"old": 1})

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UsageError, match=r"\(No space left on device\). Finished"):
        folder.write(tmp_path / "a.json", {"new": 1})
    assert json.loads((tmp_path / "a.json").read_bytes()) == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


# ---- The command line


def given(text: str) -> "command.Given":
    return command.parse(shlex.split(text))


SERVE = "-- vllm serve MODEL --port 9"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "give either"),
        (f"--deployment off=http://h:1 {SERVE}", "and not both"),
        ("--deployment off", "POLICY=http://HOST:PORT"),
        ("--deployment off=http://h:1 --deployment off=http://h:2", "each policy once"),
        ("--deployment off=http://h:1", "two or more different ones"),
        (f"--policy off off {SERVE}", "two or more different ones"),
        (f"--policy off best {SERVE}", "--policy best: a server has off, cap"),
        (f"--policy off sglang-8 {SERVE}", "--policy sglang-8: a server has"),
        (f"--rounds 0 {SERVE}", "--rounds 0: give 1 or more"),
        (f"--options align=--x {SERVE}", "POLICY=WORDS with one of off, adaptive"),
        (f"--options 'off=--disable-log-stats' {SERVE}", "without statistics"),
        (f"{SERVE} --data_parallel_balance=off", "leave it out of the command"),
        (f"{SERVE} --disable-log-stats", "without statistics"),
    ],
)
def test_what_would_void_the_comparison_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        command._main(given(text))


def test_the_report_shows_numbers_and_hides_names():
    serve = (
        "vllm serve /models/secret -dp 4 --port 8000 --host 10.0.0.7 --api-key hunter2 "
        "--served-model-name=secret --data-parallel-address 10.0.0.7 --dtype bfloat16 "
        '--additional-config {"a":"/etc"} --max-num-seqs=64'
    )
    load = "--dataset-name sharegpt --dataset-path /home/me/x.json --num-prompts 9"
    load += " --header Authorization=hunter2 --request-rate inf --random-range-ratio .4"
    args = given(f"--options 'off=--max-num-seqs 3 --api-key hunter2' {SERVE}").args
    shown = load_options.shown(
        load.split(), serve.split(), ["off", "adaptive:ttft_budget=2"], args
    )
    for secret in ("secret", "hunter2", "10.0", "8000", "/"):
        assert secret not in shown
    for told in (
        *("-dp 4", "--dtype bfloat16", "--max-num-seqs 64", "--num-prompts 9"),
        *("--dataset-name sharegpt", "--request-rate inf", "adaptive:ttft_budget=2"),
        *("--options 'off=--max-num-seqs 3", "--random-range-ratio .4"),
    ):
        assert told in shown


# ---- What is sent


def test_equal_hash_ids_are_equal_text_and_lengths_are_kept():
    one, other = (SimRequest(i, 11, 3, hash_ids=(7, 8), chunk_size=4) for i in (0, 1))
    prompts = replay.Prompts(range(1000), seed=5)
    assert prompts.of(one)[:8] == prompts.of(other)[:8]
    assert prompts.of(one)[8:] != prompts.of(other)[8:]
    assert len(prompts.of(one)) == 11
    assert prompts.of(one) == replay.Prompts(range(1000), seed=5).of(one)
    assert prompts.of(one) != replay.Prompts(range(1000), seed=6).of(one)


def test_lengths_are_divided_and_a_rate_stretches_the_intervals(tmp_path):
    trace = tmp_path / "trace.jsonl"
    line = '{"timestamp": %d, "input_length": 80, "output_length": 9, "hash_ids": [1]}'
    trace.write_text("\n".join(line % (1000 * n) for n in range(5)))
    words = f"--dataset-path {trace} --request-rate 2"
    args = given(f"--replay --length-divisor 8 {SERVE}").args
    load = load_options.load_from(words.split(), args)
    requests = load.workload.requests(random.Random(0))
    assert {(r.prompt_len, r.output_len, r.chunk_size) for r in requests} == {
        (10, 1, 64)
    }
    due = load.traffic.due_times(requests, random.Random(0))
    assert due[-1] <= 5 / 2 + 3  # Mooncake's times are spread over three seconds
    assert load.traffic.rate_multiplier == pytest.approx(
        requests[-1].due * 2 / len(requests)
    )


# ---- Figures and verdict

SAVED = {
    "start_times": [10.0, 14.0],
    "ttfts": [1.0, 1.0],
    "itls": [[1, 1, 2], []],
    "output_lens": [4, 1],
}


def test_figures_are_those_of_the_requests():
    found = figures_of(SAVED)
    assert found["steady_output_throughput"] == 3 / 4  # at 11, 12, 13 s; not at 15 s
    assert found["output_throughput"] == 1.0
    assert found["mean_e2el_ms"] == 3000
    assert found["mean_tpot_ms"] == pytest.approx(4000 / 3)
    assert found["median_ttft_ms"] == 1000
    single = {"start_times": [1], "ttfts": [1], "itls": [[1]], "output_lens": [2]}
    assert steady_throughput(single) == 0


def test_students_t():
    found = [t95(freedom) for freedom in (1, 10, 11, 30)]
    assert found == pytest.approx([12.706, 2.228, 2.201, 2.042], rel=2e-3)


def trials(gain: float, noise: float, rounds: int, seed: int) -> Ratio:
    rng = random.Random(seed)
    base = [rng.gauss(10, 1) for _ in range(rounds)]
    values = [x * (1 - gain) * math.exp(rng.gauss(0, noise)) for x in base]
    found = Ratio.of(values, base)
    assert found is not None
    return found


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.02, 0.1])
@pytest.mark.parametrize("rounds", [2, 3, 5])
def test_off_in_disguise_cannot_be_told_apart(noise, rounds):
    """Of a hundred trials at most ten say anything else, whatever the noise."""
    said = [
        sentence("adaptive", "off", trials(0.0, noise, rounds, seed), None)
        for seed in range(100)
    ]
    assert sum(APART not in text for text in said) <= 10
    assert all(APART in text or noise for text in said)


@pytest.mark.parametrize(("gain", "noise"), [(0.2, 0.02), (0.05, 0.005), (-0.2, 0.02)])
def test_a_difference_is_seen_and_given_its_sign(gain, noise):
    said = [
        sentence("adaptive", "off", trials(gain, noise, 4, seed), None)
        for seed in range(100)
    ]
    assert sum(APART not in text for text in said) >= 90
    word = "earlier" if gain > 0 else "later"
    assert all(f"% {word} than with off" in text for text in said if APART not in text)


def test_so_many_more_rounds_would_tell():
    found = trials(0.04, 0.06, 3, seed=1)
    assert not found.differs
    more = found.more_rounds
    assert more is not None
    assert more > 0
    half = t95(found.rounds + more - 1) * found.deviation
    half /= math.sqrt(found.rounds + more)
    assert half < max(abs(math.log(found.mean)), math.log1p(0.02))
    assert f"About {more} more turns" in sentence("adaptive", "off", found, None)
    one = sentence("adaptive", "off", trials(0.3, 0.0, 1, 0), None)
    assert APART in one
    assert "--rounds 3" in one


# ---- Steps, picture and report

BY_RANKS, BY_FRONT_END = "EngineCore_DP{rank} ", "MainProcess Engine 00{rank}: "
LINE = (
    "Iteration({number}): 1 context requests, {prefill} context "
    "tokens, {decodes} generation requests, 4 generation tokens, iteration elapsed "
    "time: {ms} ms"
)


@pytest.mark.parametrize("who", [BY_RANKS, BY_FRONT_END])
def test_steps_are_read_from_a_log(tmp_path, who):
    log = tmp_path / "a.steps"
    one, other = who.format(rank=0), who.format(rank=1)
    log.write_text(
        f"105.0 {one}{LINE.format(number=7, prefill=100, decodes=4, ms=200.0)}\n"
        "104.9 MainProcess Application startup complete.\n"
        f"105.0 {other}{LINE.format(number=7, prefill=0, decodes=8, ms=190.0)}\n"
    )
    first, second = read_steps(log, COST)
    assert (first.rank, first.number, first.start) == (0, 7, 0)
    assert first.end == pytest.approx(0.2)
    assert first.waits_s == pytest.approx(0.2 - (0.05 + 4 * 0.001 + 0.04 + 0.05))
    assert second.waits_s == pytest.approx(0.19 - 0.058)
    waited = first.waits_s + second.waits_s
    assert waiting_share([first, second]) == pytest.approx(waited / 0.39)
    assert read_steps(tmp_path / "none", COST) == ()


def test_overlapping_steps_last_from_end_to_end():
    steps = [
        Step(rank, number, 0.0, 0.1 * number + 0.001 * rank, 0, 3)
        for number in range(1, 5)
        for rank in (0, 1)
    ]
    assert [s.seconds for s in spaced(steps, 2)] == pytest.approx([0.1, 0.1, 0.1])
    # Nothing is known of a step that came after a pause, or that a rank did not log.
    idle = [step for step in steps if (step.rank, step.number) != (1, 2)]
    assert len(spaced(idle, 2)) == 1


def result(turn: turns.Turn, e2el: float) -> turns.Result:
    figures = {name: e2el for name in report.FIGURES if name != "computed_share"}
    counters = {
        "vllm:generation_tokens_total": {"0": 1.0, "1": 1.0},
        "vllm:prefix_cache_queries_total": {"0": 100.0, "1": 100.0},
        "vllm:prefix_cache_hits_total": {"0": 50.0, "1": 0.0},
        "vllm:dp_balance_exchange_seconds_sum": {"0": 3.0, "1": 1.0},
        "vllm:dp_balance_exchange_seconds_count": {"0": 1e3, "1": 1e3},
    }
    if turn.policy == "off":
        counters = {k: v for k, v in counters.items() if "exchange" not in k}
    figures |= {"requests": 5.0, "duration": 9.0}
    return turns.Result(turn.policy, turn.round, figures, counters, {}, {})


def test_a_report_has_what_the_turns_say(tmp_path):
    folder = turns.Folder(tmp_path)
    folder.prepare({})
    order = turns.order(["off", "adaptive"], 3)
    results = [result(t, 10 + t.round - 2 * (t.policy != "off")) for t in order]
    load = load_options.Replay(Workload(1), ClientTraffic(), given(SERVE).args)
    about = {"command": "vllm bench dp-balance trial"}
    report.write(folder, order, results, load, Plan(), about, None)
    found = json.loads((folder.report / "report.json").read_text())
    ratio = found["policies"]["adaptive"]["ratios"]["mean_e2el_ms"]
    assert ratio["low"] == pytest.approx(8 / 10)
    assert ratio["high"] == pytest.approx(10 / 12)
    assert ratio["mean"] == pytest.approx(
        math.exp(statistics.fmean(math.log(x) for x in (8 / 10, 9 / 11, 10 / 12)))
    )
    assert found["policies"]["adaptive"]["mean"]["computed_share"] == 0.75
    assert found["device"]["exchange_us"] == pytest.approx(1e6 * 1 / 1e3)
    page = (folder.report / "report.md").read_text()
    assert "adaptive: requests end 18.3% earlier than with off (16.7%" in page
    assert "No forecast" in page
    pixels = image.imread(folder.report / "trial.png")
    assert pixels.shape[0] > 500


def test_the_picture_shows_the_same_seconds_of_both(tmp_path):
    steps = [
        Step(rank, n, n * 0.105, n * 0.105 + 0.1, 20 * (n % 10 == rank), 2, 0.04)
        for n in range(400)
        for rank in range(4)
    ]
    mean = {name: 10.0 for _, name, _ in picture.FIGURES}
    policies = {"off": {"mean": mean, "runs": [1]}, "cap": {"mean": mean, "runs": [1]}}
    both = {"off": steps, "cap": steps}
    assert picture.draw({"policies": policies}, both, tmp_path / "x.png") == ""
    pixels = image.imread(tmp_path / "x.png")
    assert pixels.shape[1] > 1000
    for colour in (picture.PROMPT, picture.TOKENS):
        wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert (abs(pixels[..., :3] - wanted).max(axis=-1) < 0.01).sum() > 500
