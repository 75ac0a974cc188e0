"""The trial's own parts: order, folder, verdict, what the report shows and hides."""

import asyncio
import json
import math
import random
import shlex
import threading
from contextlib import nullcontext
from pathlib import Path

import pytest
from matplotlib import image

from vllm_balance.cli import main
from vllm_balance.errors import UsageError
from vllm_balance.server_api import OtherPolicyError, Scrape
from vllm_balance.trial import command, picture, report, turns
from vllm_balance.trial.figures import figures_of
from vllm_balance.trial.steps import (
    decode_seconds,
    prompt_seconds,
    read_steps,
    slowness,
    waiting_share,
)
from vllm_balance.trial.verdict import Ratio, sentence, t95

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
    with pytest.raises(UsageError, match="or the turns of another trial"):
        folder.prepare({"load": ["b"]})
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").touch()
    with pytest.raises(UsageError, match="has something else"):
        turns.Folder(tmp_path / "mine").prepare({})
    (tmp_path / "out" / "trial.json").write_bytes(b"")  # the disk was full
    with pytest.raises(UsageError, match="has something else"):
        folder.prepare({"load": ["a"]})


def test_a_disk_that_is_full_leaves_the_old_file(tmp_path, monkeypatch):
    folder = turns.Folder(tmp_path)
    folder.write(tmp_path / "a.json", "old")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(UsageError, match=r"No space left on device\. Finished"):
        folder.write(tmp_path / "a.json", "new")
    assert (tmp_path / "a.json").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


class Answers:
    """A load and an endpoint of which one turn fails."""

    def __init__(self, fails: int = 0) -> None:
        self.sent: list[int] = []
        self._fails = fails
        self.watch = lambda: None

    async def send(self, _: object, number: int) -> dict[str, object]:
        self.sent.append(number)
        if len(self.sent) == self._fails:
            return {"completed": 1, "failed": 2, "errors": ["", "a\nTimeoutError: b"]}
        return {"completed": 2, "failed": 0, **SAVED}

    def figures(self, policy: str) -> Scrape:
        assert policy in ("off", "adaptive")
        return Scrape(2, None, {})


def test_a_failed_turn_is_an_error_and_the_others_are_kept(tmp_path):
    folder = turns.Folder(tmp_path)
    folder.prepare({})
    order = turns.order(["off", "adaptive"], 2)
    found = Answers(fails=3)
    serve = nullcontext(found)
    with pytest.raises(UsageError) as caught:
        turns.run(folder, order, lambda _: serve, found, False)
    assert str(caught.value) == (
        "turn 3 of 4, adaptive: 2 of 3 requests failed, the first with: TimeoutError: "
        "b. 2 finished turns are kept; run the same command again to go on."
    )
    results = turns.run(folder, order, lambda _: serve, found, False)
    assert found.sent == [0, 0, 1, 1, 1]
    assert [result.saved["ttfts"] for result in results] == [SAVED["ttfts"]] * 4
    for torn in ("{}", "null"):
        folder.file(order[0]).write_text(torn)
        with pytest.raises(UsageError, match="is no result of a turn; delete it"):
            turns.run(folder, order, lambda _: serve, found, False)


def test_costs_are_of_the_end_but_for_decodes(tmp_path, monkeypatch):
    """Then the last requests decode alone, which is faster. The medians of the parts,
    each by itself, once were of no device: attention had been learned in the midst."""
    monkeypatch.setattr(turns, "LOOK_EVERY", 1)
    folder = turns.Folder(tmp_path)
    folder.prepare({})
    order = turns.order(["off", "adaptive"], 1)
    found, looks = (
        Answers(),
        iter([{}, {"decode": 0.09, "own": 9}, {"decode": 0.08, "own": 8}, None]),
    )
    enough = threading.Event()

    async def send(*_: object) -> dict[str, object]:
        while not enough.is_set():
            await asyncio.sleep(0.01)
        return {"completed": 2, "failed": 0, **SAVED}

    def figures(policy: str = "") -> Scrape:
        if policy:  # at the end
            return Scrape(2, None, {"decode": 0.04, "own": 7})
        costs = next(looks, None)
        if costs is None:
            enough.set()
            raise UsageError("no answer")
        return Scrape(2, None, costs)

    monkeypatch.setattr(found, "send", send)
    monkeypatch.setattr(found, "figures", figures)
    results = turns.run(folder, order[1:], lambda _: nullcontext(found), found, False)
    assert results[0].figures.costs == {"decode": pytest.approx(0.085), "own": 7}


@pytest.mark.parametrize("error", [UsageError, OtherPolicyError])
def test_a_load_is_kept_whatever_comes_of_the_figures(tmp_path, monkeypatch, error):
    """But not that of another policy."""
    folder = turns.Folder(tmp_path)
    folder.prepare({})
    order = turns.order(["off", "adaptive"], 1)
    found = Answers()

    def fails(_: str) -> Scrape:
        raise error("http://h:1/metrics: no answer (Connection refused).")

    monkeypatch.setattr(found, "figures", fails)
    serve = nullcontext(found)
    kept = int(error is UsageError)
    with pytest.raises(
        UsageError, match=rf"refused\)\. {kept} finished turns are kept"
    ):
        turns.run(folder, order, lambda _: serve, found, False)
    monkeypatch.undo()
    results = turns.run(folder, order, lambda _: serve, found, False)
    assert found.sent == [0] * (3 - kept)
    assert [result.figures is None for result in results] == [bool(kept), False]
    report.write(folder, order, results, {"command": "", "device": None})
    assert json.loads((folder.report / "report.json").read_text())["ranks"] == 2


# ---- The command line


def given(text: str) -> "command.Given":
    return command.parse(shlex.split(text))


def test_its_words_are_its_own_but_for_a_question(monkeypatch, capsys):
    words = ["--rounds", "2", "--num-prompts", "9", "--", "vllm", "serve", "--help"]
    ran = []
    monkeypatch.setattr(command, "run", lambda chosen: ran.append(chosen.words))
    assert main(["trial", *words]) == 0
    assert ran == [words]
    for question in ("-h", "--help"):
        with pytest.raises(SystemExit) as ended:
            main(["trial", "--rounds", "many", question, "--", "vllm", "serve"])
        assert ended.value.code == 0
        shown = capsys.readouterr().out
        for option in ("--policy", "--deployment", "--rounds", "--result-dir"):
            assert option in shown
        assert "-- vllm serve MODEL" in shown
    assert ran == [words]


SERVE = "-- vllm serve MODEL --port 9"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "give either"),
        (f"--deployment off=http://h:1 {SERVE}", "and not both"),
        ("--deployment off", "POLICY=http://HOST:PORT"),
        ("--deployment off=http://h:1 --deployment off=http://h:2", "each policy once"),
        ("--deployment off=http://h:1", "two or more different ones"),
        *(
            (f"--deployment off={url} --deployment cap=http://h:1", "is no address")
            for url in ("http://[::1", "http://h:70000", "http://h:x", "http://:1")
        ),
        (f"--policy off off {SERVE}", "two or more different ones"),
        (f"--policy off best {SERVE}", "--policy best: a server has off, cap"),
        (f"--policy off cap:margin=3 {SERVE}", "--policy cap:margin=3: a server has"),
        (
            f"--rounds 0 {SERVE}",
            "argument --rounds: 0: give a whole number from 1 to 1000",
        ),
        (f"{SERVE} --data_parallel_balance=off", "out; --policy says what"),
        (f"{SERVE} --disable-log-stats", "leave it out; the policies could"),
    ],
)
def test_what_would_void_the_comparison_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        command.trial(given(text))


def test_the_report_shows_numbers_and_hides_names():
    words = (
        "--policy off adaptive --dataset-name sharegpt --num-prompts 9 "
        "--dataset-path /home/me/x.json --header Authorization=hunter2 "
        "--request-rate inf --random-range-ratio .4 "
        "-- vllm serve /models/secret -dp 4 --port 8000 --host 10.0.0.7 "
        "--api-key hunter2 --served-model-name=secret --dtype bfloat16 "
        "--data-parallel-address 10.0.0.7 --max-num-seqs=64 "
        """--additional-config '{"a":"/etc"}' --compilation-config.level 3"""
    )
    shown = command.shown(given(words), ["off", "adaptive"])
    for secret in ("secret", "hunter2", "10.0", "8000", "/"):
        assert secret not in shown
    for told in (
        "-dp 4",
        "--dtype bfloat16",
        "--max-num-seqs 64",
        "--num-prompts 9",
        "--dataset-name sharegpt",
        "--request-rate inf",
        "--policy off adaptive",
        "--random-range-ratio .4",
    ):
        assert told in shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/data/jane/Qwen3-30B-A3B", "Qwen3-30B-A3B"),
        ("/data/jane/Qwen3-30B-A3B/", "Qwen3-30B-A3B"),
        ("../jane/model", "model"),
        ("s3://bucket/jane/model", "model"),
        ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B"),
        ("name", "name"),
        ("jane/model", "model"),  # a folder that is there
    ],
)
def test_a_model_is_shown_without_its_folder(tmp_path, monkeypatch, name, shown):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jane/model").mkdir(parents=True)
    assert command.shown_model(name) == shown


# ---- Figures and verdict

SAVED = {
    "start_times": [10.0, 14.0],
    "ttfts": [1.0, 1.0],
    "itls": [[1, 1, 2], []],
    "mean_e2el_ms": 3000.0,
}


def test_tokens_are_counted_until_the_last_request_is_sent():
    found = figures_of(SAVED)
    assert found["steady_output_throughput"] == 3 / 4  # at 11, 12, 13 s; not at 15 s
    assert (found["mean_e2el_ms"], found["mean_tpot_ms"]) == (3000, 0)
    assert figures_of(SAVED | {"start_times": [1, 1]})["steady_output_throughput"] == 0


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


@pytest.mark.parametrize("noise", [0.0, 0.005, 0.1])
@pytest.mark.parametrize("gain", [0.0, 0.05, 0.2, -0.2])
def test_a_difference_is_seen_with_its_sign_and_only_where_there_is_one(gain, noise):
    """Of a hundred trials ten may say anything else."""
    said = [
        sentence("adaptive", "off", trials(gain, noise, 4, seed), None)
        for seed in range(100)
    ]
    told = [text for text in said if APART not in text]
    if not gain:
        assert len(told) <= 10 * bool(noise)
    elif abs(gain) > 5 * noise:
        assert len(told) >= 90
        word = "earlier" if gain > 0 else "later"
        assert all(f"% {word} than with off" in text for text in told)


def test_so_many_more_rounds_would_tell():
    found = trials(0.04, 0.06, 3, seed=1)
    assert not found.differs
    more = found.more_rounds
    assert 0 < more < 100
    wanted = max(abs(math.log(found.mean)), math.log1p(0.02))
    assert found.half_width(3 + more) < wanted < found.half_width(2 + more)
    assert f"About {more} more turns" in sentence("adaptive", "off", found, None)
    one = sentence("adaptive", "off", trials(0.3, 0.0, 1, 0), None)
    assert APART in one
    assert "--rounds 3" in one


# ---- Steps, picture and report

BY_RANKS, BY_FRONT_END = "EngineCore_DP{rank} ", "MainProcess Engine 00{rank}: "
LINE = (
    "Iteration({number}): 1 context requests, {prefill} context "
    "tokens, {decodes} generation requests, {decodes} generation tokens, iteration "
    "elapsed time: {ms} ms"
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
    first, second = read_steps(log)
    assert (first.rank, first.number, first.start) == (0, 7, 0)
    assert (first.end, second.start) == pytest.approx((0.2, 0.01))
    assert (second.prefill, second.decodes) == (0, 8)
    assert read_steps(tmp_path / "none") == []


def test_ranks_of_a_dense_model_and_one_alone_wait_for_nobody(tmp_path):
    """Their steps have numbers of their own; what they cost is found all the same."""
    lines = []
    for rank, speed in ((0, 1.0), (1, 1.6)):
        clock = 100.0
        for number in range(300):
            full, prompt = 1 + number % 8, 100 * (number % 10 == rank)
            clock += (0.04 + 0.01 * full + 0.3 * bool(prompt)) * speed
            load = {"prefill": prompt, "decodes": full, "ms": 1.0}
            lines.append((clock, rank, LINE.format(number=number, **load)))
    (log := tmp_path / "dense.steps").write_text(
        "\n".join(
            f"{clock} {BY_RANKS.format(rank=rank)}{line}"
            for clock, rank, line in sorted(lines)
        )
    )
    (one := tmp_path / "one.steps").write_text(
        "\n".join(f"{x} EngineCore {line}" for x, rank, line in lines if rank == 0)
    )
    steps = read_steps(log)
    assert len(steps) == 600
    assert waiting_share(steps) == 0
    alone = read_steps(one)
    assert len(alone) == 300
    assert waiting_share(alone) == 0
    assert decode_seconds([alone]) == pytest.approx({"alone": 0.04, "each": 0.01})


def steps_log(ms: float = 230.0, logged_late: bool = False) -> str:
    """Every tenth step takes three times as long.

    Args:
        ms: elapsed time of a step as the log has it.
        logged_late: whether a step is logged when the one after it has ended.
    """
    lines, clock = [], 100.0
    for number in range(300):
        clock += 0.15 if number % 10 == 0 else 0.05
        logged = number - logged_late
        for rank in (0, 1):
            prompt = 100 * (logged % 10 == 0 and rank == 0)
            line = LINE.format(number=logged, prefill=prompt, decodes=4, ms=ms)
            lines.append(f"{clock} {BY_RANKS.format(rank=rank)}{line}")
    return "\n".join(lines[2 * logged_late :])


LAUNCH_RETURNS, LAUNCH_BLOCKS = {"ms": 230.0}, {"ms": 0.02}
BOTH = {"ms": 0.02, "logged_late": True}


@pytest.mark.parametrize("logged", [LAUNCH_RETURNS, LAUNCH_BLOCKS, BOTH])
def test_ranks_wait_for_the_one_that_computes_a_prompt(tmp_path, logged):
    (log := tmp_path / "a.steps").write_text(steps_log(**logged))
    steps = [step for step in read_steps(log) if step.number > 2]
    lasts = [step.end - step.start for step in steps]
    assert sorted({round(each, 3) for each in lasts}) == [0.05, 0.15]
    for step in steps:
        waits = step.rank == 1 and step.number % 10 == 0
        assert step.waits_s == pytest.approx(0.1 * waits, abs=0.01)


@pytest.mark.parametrize("dummy", [0, 1])
def test_steps_behind_a_pause_have_no_time_where_they_are_logged_late(tmp_path, dummy):
    """Whether the ranks step once without requests before they pause, or not."""
    clock, lines = 100.0, []
    waves = [wave * (100 + dummy) for wave in range(3)]
    for first in waves:
        lasts = [0.15 if place % 10 == 0 else 0.05 for place in range(100)]
        ends = [clock + sum(lasts[: place + 1]) for place in range(100)]
        # Logged when the next one has ended; the last one at once, as there is none.
        logged = [*ends[1:], ends[-1] + 0.001, ends[-1] + 0.05][: 100 + dummy]
        for place, end in enumerate(logged):
            load = {"prefill": 100 * (place % 10 == 0), "decodes": 4, "ms": 0.02}
            if place == 100:
                load = {"prefill": 0, "decodes": 0, "ms": 50.0}
            line = LINE.format(number=first + place, **load)
            lines.append(f"{end} {BY_RANKS.format(rank=0)}{line}")
        clock = logged[-1] + 5
    (log := tmp_path / "a.steps").write_text("\n".join(lines))
    steps = [step for step in read_steps(log) if step.decodes]
    for step in steps:
        expected = 0.15 if step.prefill else 0.05
        assert step.end - step.start == pytest.approx(expected, abs=2e-3)
    known = {first + place for first in waves for place in range(2, 100)}
    assert {step.number for step in steps} == known


def test_a_pause_of_ranks_that_had_nothing_to_do_is_no_step(tmp_path):
    (log := tmp_path / "a.steps").write_text(
        "\n".join(
            f"{end} {BY_RANKS.format(rank=0)}"
            + LINE.format(number=number, prefill=prompt, decodes=decodes, ms=1.0)
            for number, (end, prompt, decodes) in enumerate(
                [(10.0, 90, 0), (10.2, 0, 1), (10.3, 0, 0), (60.3, 90, 0)]
            )
        )
    )
    lasts = [step.end - step.start for step in read_steps(log)]
    assert lasts == pytest.approx([0.001, 0.2, 0.1, 0.001])


def test_what_a_decode_takes_is_found_by_the_tokens_of_the_fullest_rank(tmp_path):
    clock, lines = 10.0, []
    for number in range(200):
        full = 1 + number % 8
        prompt = 90 * (number % 5 == 0)
        # One in fifty takes a second.
        clock += 0.04 + 0.01 * full + 0.3 * bool(prompt) + (number % 50 == 7)
        for rank, decodes in (0, 1), (1, full):
            load = {"prefill": prompt * rank, "decodes": decodes}
            line = LINE.format(number=number, ms=500.0, **load)
            lines.append(f"{clock} {BY_RANKS.format(rank=rank)}{line}")
    (log := tmp_path / "a.steps").write_text("\n".join(lines))
    steps = read_steps(log)
    found = decode_seconds([steps, steps])
    assert found == pytest.approx({"alone": 0.04, "each": 0.01}, abs=1e-3)
    assert decode_seconds([]) is None
    alike = [step for step in steps if step.number % 8 == 2]
    assert decode_seconds([alike]) is None, "nothing says what each adds"


PROMPTS = {"fixed": 0.02, "own": 8e-4, "shared": 4e-4}


def prompts_log(alike: bool, slower: float = 1.0) -> str:
    """Steps with prompts on one rank or on both, and decodes; some took too long."""
    clock, lines = 10.0, []
    for number in range(400):
        full = 1 + number % 8
        prompts = [37 * (number % 11), 37 * (number % 11 if alike else number % 4)]
        clock += 0.04 + 0.01 * full + 2.0 * (number % 50 == 9)
        if any(prompts):
            clock += PROMPTS["fixed"] + PROMPTS["own"] * max(prompts)
            clock += PROMPTS["shared"] * sum(prompts) / 2
        # As in the first steps behind a pause, whose times are not known.
        clock += 9.0 * (number % 100 == 30)
        for rank, prompt in enumerate(prompts):
            # One without a request is done sooner, and then its next step looks longer.
            idle = rank == 0 and not prompts[0] and prompts[1] > 0
            decodes, end = (0, clock - 0.04) if idle else (full, clock)
            end = 10.0 + slower * (end - 10.0)
            line = LINE.format(number=number, prefill=prompt, decodes=decodes, ms=0.1)
            lines.append(f"{end} {BY_RANKS.format(rank=rank)}{line}")
    return "\n".join(lines)


def test_whose_the_cost_of_a_prompt_is_other_policies_tell(tmp_path):
    logs = {alike: tmp_path / f"{alike}.steps" for alike in (False, True)}
    for alike, log in logs.items():
        log.write_text(prompts_log(alike))
    unlike, alike = (read_steps(logs[each]) for each in (False, True))
    decodes = decode_seconds([unlike, alike])
    assert prompt_seconds([unlike], decodes) == pytest.approx(PROMPTS, rel=0.02)
    assert prompt_seconds([alike, unlike], decodes) == pytest.approx(PROMPTS, rel=0.02)
    assert prompt_seconds([alike], decodes) is None, "one part may be the other"
    assert prompt_seconds([], decodes) is None
    assert prompt_seconds([unlike], None) is None


def test_how_much_slower_a_turn_was_than_the_others(tmp_path):
    folder = turns.Folder(tmp_path)
    folder.prepare({})
    order = turns.order(["off", "adaptive"], 2)
    for turn, slower in zip(order, (0.9, 1.0, 1.0, 1.1), strict=True):
        log = prompts_log(alike=turn.policy != "off", slower=slower)
        folder.file(turn, ".steps").write_text(log)
    results = [result(t, 10) for t in order]
    report.write(folder, order, results, {"command": "trial", "device": None})
    found = json.loads((folder.report / "report.json").read_text())["slowness"]
    assert found["off"] == pytest.approx([0.9, 1.1], rel=0.03)
    assert found["adaptive"] == pytest.approx([1.0, 1.0], rel=0.03)
    assert (
        "| steps with the same tokens | 1.0"
        in (folder.report / "report.md").read_text()
    )
    steps = read_steps(folder.file(order[0], ".steps"))
    decodes = {"alone": 0.04, "each": 0.01}
    assert slowness(steps, decodes, PROMPTS) == pytest.approx(0.9, rel=0.01)
    assert slowness([], decodes, PROMPTS) is None
    assert slowness(steps, decodes, None) is None
    assert slowness(steps, None, None) is None


def test_how_long_ranks_wait_is_unknown_where_each_step_has_prompts(tmp_path):
    """What a step takes without prompts is what the others are compared with."""
    folder = turns.Folder(tmp_path)
    folder.prepare({})
    order = turns.order(["off", "adaptive"], 1)
    always = steps_log().replace(" 0 context tokens", " 50 context tokens")
    folder.file(order[0], ".steps").write_text(always)
    folder.file(order[1], ".steps").write_text(steps_log())
    results = [result(t, 10) for t in order]
    report.write(folder, order, results, {"command": "trial", "device": None})
    found = json.loads((folder.report / "report.json").read_text())["waiting_share"]
    assert found["off"] is None
    assert found["adaptive"] == pytest.approx(1 / 12, rel=0.1)
    page = (folder.report / "report.md").read_text()
    assert "| ranks wait for the slowest | unknown | 9% |" in page
    assert "steps with the same tokens" not in page, "too few steps to tell"


def result(turn: turns.Turn, seconds: float) -> turns.Result:
    """Five requests at once that take so long."""
    saved = {
        "start_times": [0.0, 0.1],
        "ttfts": [1.0, 1.0],
        "itls": [[seconds - 1], [seconds - 1]],
        "mean_e2el_ms": 1e3 * seconds,
        "output_throughput": 4 / seconds,
    }
    exchange_us = None if turn.policy == "off" else 1000.0
    return turns.Result(saved, Scrape(2, exchange_us, {}))


def test_a_report_has_what_the_turns_say(tmp_path, capsys, monkeypatch):
    folder = turns.Folder(tmp_path)
    folder.prepare({})
    order = turns.order(["off", "adaptive"], 3)
    for turn in order[-2:]:
        folder.file(turn, ".steps").write_text(steps_log())
    results = [result(t, 10 + t.round - 2 * (t.policy != "off")) for t in order]
    about = {"command": "vllm-balance trial", "device": "Ascend910B3"}
    monkeypatch.setattr(report, "usable_cores", lambda: 3)
    report.write(folder, order, results, about)
    found = json.loads((folder.report / "report.json").read_text())
    adaptive = found["policies"]["adaptive"]
    assert adaptive["runs"]["mean_e2el_ms"] == [8000, 9000, 10000]
    ratio = adaptive["ratios"]["mean_e2el_ms"]
    assert (ratio["low"], ratio["high"]) == pytest.approx((8 / 10, 10 / 12))
    assert ratio["mean"] == pytest.approx((8 / 10 * 9 / 11 * 10 / 12) ** (1 / 3))
    assert found["exchange_us"] == 1000.0
    page = (folder.report / "report.md").read_text()
    verdict = "adaptive: requests end 18.3% earlier than with off (16.7% earlier"
    assert verdict in page
    assert verdict in capsys.readouterr().out
    assert "Ascend910B3; 3 cores" in page
    assert (found["ranks"], found["requests"]) == (2, 2)
    # Both requests were sent before the first answer: nothing is steady.
    assert "| output tokens per second |" not in page
    assert "| output tokens per second, whole run |" in page
    assert found["waiting_share"]["off"] == pytest.approx(1 / 12, rel=0.1)
    pixels = image.imread(folder.report / "trial.png")
    for colour in (picture.PROMPT, picture.TOKENS, picture.WAITS):
        wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert (abs(pixels[..., :3] - wanted).max(axis=-1) < 0.01).sum() > 500


def test_rounds_are_begun_until_the_minutes_are_over(tmp_path):
    folder = turns.Folder(tmp_path)
    folder.prepare({})
    order = turns.order(["off", "adaptive"], 9)
    found = Answers()
    results = turns.run(
        folder, order, lambda _: nullcontext(found), found, False, minutes=0
    )
    assert len(results) == 2 * turns.LEAST_ROUNDS
    assert found.sent == [0, 0, 1, 1, 2, 2]


def test_one_deployment_stands_for_all_policies():
    one = command._deployments(given("--deployment http://h:1"))
    assert one == {"off": "http://h:1", "adaptive": "http://h:1"}
    others = given("--deployment http://h:1 --policy cap align")
    assert [*command._deployments(others)] == ["cap", "align"]
