"""The trial's own parts: its load, its stretches, what is said of them, and shown."""

import asyncio
import contextlib
import json
import math
import random
import shlex
import signal
from types import SimpleNamespace

import pytest
from matplotlib import image

import virtual_trial
from vllm_balance.cli import main
from vllm_balance.errors import UsageError
from vllm_balance.server_api import Scrape
from vllm_balance.trial import command, figures, load, picture, report, switchback
from vllm_balance.trial.figures import (
    JUDGED,
    RATE,
    TPOT,
    TTFT,
    WITHIN_LIMITS,
    Answer,
    Measured,
    Stretch,
)
from vllm_balance.trial.load import Sending, Traffic
from vllm_balance.trial.switchback import Switchback, Times, names_of
from vllm_balance.trial.verdict import (
    LEAST_BLOCKS,
    Interval,
    level,
    sentence,
    t_quantile,
)

APART = "cannot be told apart"

# ---- The verdict


def test_students_t():
    exact = {1: 12.706, 3: 3.182, 10: 2.228, 30: 2.042}
    for freedom, value in exact.items():
        found = t_quantile(0.05, freedom)
        assert value <= found * 1.0001
        assert freedom == 1 or found < 1.012 * value
    assert t_quantile(0.001, 9) == pytest.approx(4.781, rel=0.01)


@pytest.mark.parametrize("most", [4, 20])
def test_all_looks_together_find_what_is_not_there_in_one_of_twenty(most):
    looks = range(LEAST_BLOCKS, most + 1)
    assert sum(level(blocks, most) for blocks in looks) == pytest.approx(0.05)


def looked_at(gain: float, noise: float, seed: int, most: int = 12) -> Interval:
    """A trial whose blocks drift, and differ much more than the policies do."""
    rng, pairs = random.Random(seed), []
    for block in range(most):
        speed = math.exp(block / 20 + rng.gauss(0, 0.5))
        both = (1.0 - gain, 1.0)
        pairs.append([x * speed * math.exp(rng.gauss(0, noise)) for x in both])
        if block + 1 >= LEAST_BLOCKS:
            logs = [math.log(x / y) for x, y in pairs]
            found = Interval.of(logs, level(block + 1, most))
            if found.differs:
                break
    return found


def test_looking_after_each_block_finds_nothing_where_there_is_nothing():
    """In more than one of twenty."""
    found = sum(looked_at(0.0, 0.1, seed).differs for seed in range(200))
    assert found <= 10


@pytest.mark.parametrize("gain", [0.2, -0.2])
def test_what_is_plain_is_known_before_the_end(gain):
    found = [looked_at(gain, 0.04, seed) for seed in range(50)]
    assert all(each.differs and (each.mean < 0) == (gain > 0) for each in found)
    assert sum(each.values for each in found) / 50 < 9


def test_the_verdict_says_how_much_or_how_long_it_would_take():
    plain = sentence("adaptive", "off", Interval(math.log(0.9), 0.04, 0.05, 9), 36)
    assert plain == (
        "adaptive: requests end 10.0% earlier than with off (likely 6.3% earlier to "
        "13.5% earlier; 9 blocks of 36 s)."
    )
    unsure = sentence("adaptive", "off", Interval(-0.05, 0.2, 0.2, 6), 36)
    assert APART in unsure
    assert "which differ by 20% among themselves; about" in unsure
    assert "more minutes would show it" in unsure
    alike = sentence("a", "off", Interval(0.001, 0.01, 0.01, 9), 36)
    assert "a difference of 2% would have shown" in alike
    noisy = sentence("a", "off", Interval(0.0, 0.9, 2.0, 9), 36)
    assert "hours would not show it" in noisy


def test_few_blocks_of_many_policies_tell_as_much_as_many_of_two():
    """In one of twenty trials the interval leaves out what is so, and it is narrow."""
    missed, halves = 0, []
    for seed in range(400):
        rng = random.Random(seed)
        blocks = [[rng.gauss(1, 0.1) for _ in range(4)] for _ in range(4)]
        means = [sum(column) / 4 for column in zip(*blocks, strict=True)]
        parts = [[x / y for x, y in zip(row, means, strict=True)] for row in blocks]
        found = Interval.within(math.log(means[1] / means[0]), parts)
        missed += abs(found.mean) > found.half
        halves.append(found.half)
    assert missed <= 30
    assert max(halves) < 0.35, "of two policies one in ten is wider"
    pairs = [[1.1, 1.0], [0.9, 1.05], [1.0, 0.95]]
    alone = Interval.of([x - y for x, y in pairs])
    assert Interval.within(0.0, pairs).half == pytest.approx(alone.half)


# ---- Figures


def steady(per_second: float, begin: float, end: float, lasts: float) -> list[Answer]:
    """Requests that come regularly, of 100 tokens each, and take so long."""
    count = int((end - begin) * per_second)
    dues = (begin + number / per_second for number in range(count))
    return [Answer(0, t, t + lasts / 2, t + lasts, 80, 20, "") for t in dues]


def test_the_figures_of_a_stretch_are_of_what_began_behind_its_washout():
    answers = [*steady(4, 0, 20, 1.0), *steady(4, 20, 40, 3.0)]
    stretches = [Stretch(0, "a", None, 0, 20), Stretch(0, "b", "a", 20, 40)]
    found = Measured(answers, {}, [], stretches, 5.0)
    one, other = found.figures
    assert one[JUDGED] == pytest.approx(1000, rel=0.02)
    assert other[JUDGED] == pytest.approx(3000, rel=0.02)
    assert (one[TTFT], other[TTFT]) == pytest.approx((500, 1500))
    assert other[TPOT] == pytest.approx(1500 / 19)
    assert (one[WITHIN_LIMITS], other[WITHIN_LIMITS]) == (1, 1)
    late = [answer._replace(first=answer.first + 9) for answer in answers]
    assert Measured(late, {}, [], stretches, 5.0).figures[0][WITHIN_LIMITS] == 0


def test_in_a_closed_loop_work_tells_how_long_requests_take():
    """Also where a stretch has begun more than it has ended."""
    answers = steady(4, 0, 20, 0.0)
    ticks = {number * 5: 20.0 for number in range(80)}  # 0.05 s each
    stretches = [Stretch(0, "a", None, 0, 20)]
    (found,) = Measured(answers, ticks, [], stretches, 4.0, clients=8).figures
    assert found[JUDGED] == pytest.approx(2000, rel=0.02), "eight over four"
    assert found[RATE] == pytest.approx(80, rel=0.02)


def test_the_tokens_that_cost_more_count_more():
    """Else a stretch with a few short prompts more seems to have done more work."""
    work = [(0.9 + 0.02 * n, 1.1 - 0.02 * n) for n in range(10)]
    noisy = [(prompt, 4 * output) for prompt, output in work]
    assert figures._steadiest([work]) == pytest.approx(0.5)
    assert figures._steadiest([noisy]) == pytest.approx(0.8)
    other = [(prompt + 5, output + 1) for prompt, output in noisy]
    assert figures._steadiest([noisy, other]) == pytest.approx(0.8), "policies differ"
    assert figures._steadiest([[(n, n) for n in range(5)]]) == 0.5, "it does not matter"
    assert figures._steadiest([noisy, noisy[:2]]) == 0.5, "nobody knows yet"


def test_a_stretch_is_judged_by_what_varies_least_and_all_widen_the_interval():
    """Here the answers' tokens say nothing, but how many they are in all."""
    rng, answers = random.Random(3), steady(4, 0, 130, 0.0)
    order = [(block, policy) for block in range(4) for policy in "abc"]
    stretches, ticks = [], {}
    for number, (block, policy) in enumerate(order):
        begin = 10.0 * number
        stretches.append(Stretch(block, policy, None, begin, begin + 10))
        ticks[int(begin * 20) + 9] = 800 * rng.uniform(0.3, 1.7)
    measured = Measured(answers, ticks, [], stretches, 0.0, clients=8)
    assert [f[JUDGED] for f in measured.figures] == pytest.approx([2000] * 12, rel=0.05)
    narrow = measured.ratio("b", "a")
    third = [s for s in stretches if s.policy == "c"]
    measured.figures[stretches.index(third[0])][JUDGED] *= 1.5
    assert measured.ratio("b", "a").half > 3 * narrow.half
    assert measured.ratio("b", "a").mean == narrow.mean


def test_prompts_that_were_held_together_count_while_they_wait():
    """Else the stretch in which two groups of them end has more work than the other."""
    groups = [(due, 4 * math.ceil((due + 1) / 4)) for due in range(24)]
    answers = [Answer(0, due, first, first + 1, 80, 20, "") for due, first in groups]
    ticks = {number * 4: 4.0 for number in range(120)}  # 20 tokens a second
    stretches = [Stretch(0, "a", None, 4.5, 10.5), Stretch(0, "b", "a", 10.5, 16.5)]
    one, other = Measured(answers, ticks, [], stretches, 0.0, clients=8).figures
    assert one[JUDGED] == pytest.approx(other[JUDGED], rel=0.15)


def test_a_block_counts_when_all_its_requests_are_answered():
    order = enumerate("abbaa")
    stretches = [Stretch(n // 2, p, None, 10 * n, 10 * n + 10) for n, p in order]
    found = Measured(stretches=stretches)
    assert found.whole_blocks(2).stretches == stretches[:4]
    waits = Measured(waiting=[35.0], stretches=stretches)
    assert waits.whole_blocks(2).stretches == stretches[:2]


def test_what_carries_over_is_seen():
    """Here requests take half a second longer behind another policy."""
    rng, clock, stretches, answers, before = random.Random(1), 0.0, [], [], None
    for block in range(30):
        for policy in rng.sample("ab", 2):
            answers += steady(8, clock, clock + 10, 2.0 + 0.5 * (policy != before))
            stretches.append(Stretch(block, policy, before, clock, clock + 10))
            clock, before = clock + 10, policy
    found = Measured(answers, {}, [], stretches, 3.0)
    carried = found.carry_over()
    assert 0.05 < carried.mean < 0.25
    *_, said = report.warnings(found)
    assert said.startswith("Behind another policy requests end ")
    assert Measured(answers, {}, [], stretches[:4], 3.0).carry_over() is None
    assert math.isinf(found.ratio("a", "b", RATE).half), "there were no tokens"


# ---- Virtual trials, of ranks whose step times are known

PAIR = ["off", "adaptive"]


@pytest.mark.parametrize("rate", [None, 1.0])
def test_a_trial_in_virtual_time_finds_what_there_is(rate):
    measured = virtual_trial.trial(PAIR, 8, 60 if rate else 30, seed=1, rate=rate)
    found = measured.ratio("adaptive", "off")
    assert math.exp(found.mean) == pytest.approx(0.88, abs=2 * found.half)
    assert found.half < 0.2


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("policy", ["off", "adaptive"])
def test_of_a_hundred_trials_five_find_what_is_not_there_at_most(policy):
    pair = names_of([policy, policy])
    trials = (virtual_trial.trial(pair, 6, 30, seed) for seed in range(100))
    found = [virtual_trial.verdict(each, pair).differs for each in trials]
    assert sum(found) <= 5


@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("rate", [None, 1.0])
def test_stretches_say_what_whole_runs_say_to_two_points(rate):
    """Stretches of three answers each for a closed loop, and of six for an open one."""
    one, other = (
        sum(virtual_trial.mean_latency(policy, 6000, seed, rate) for seed in range(3))
        for policy in ("adaptive", "off")
    )
    length = 33 if rate is None else 60
    measured = virtual_trial.trial(PAIR, 6000 // length, length, 1, rate)
    found = measured.ratio("adaptive", "off")
    assert math.exp(found.mean) == pytest.approx(one / other, abs=0.02 + found.half)


# ---- The load and its stretches


def test_a_second_signal_leaves_the_clean_up_alone(monkeypatch):
    """A group gets it, and its leader passes it on, while a server is being stopped."""
    numbers = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
    before = [signal.getsignal(number) for number in numbers]

    def trial(_):
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        try:
            for number in numbers:
                signal.raise_signal(number)
        except KeyboardInterrupt:  # which would end all tests
            pytest.fail("the second signal interrupts, too")

    monkeypatch.setattr(command, "trial", trial)
    try:
        command.run(SimpleNamespace(words=["--", "vllm", "serve"]))
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self):
        super().__init__()
        self.now, select = 0.0, self._selector.select

        def at_once(timeout=None):
            assert timeout is not None, "everybody waits for ever"
            self.now += timeout
            return select(0)

        self._selector.select = at_once

    def time(self):
        return self.now


@pytest.fixture
def loop(monkeypatch):
    found = VirtualLoop()
    clock = SimpleNamespace(perf_counter=found.time, time=found.time)
    for module in (load, switchback):
        monkeypatch.setattr(module, "time", clock)

    async def at_once(what, *given):
        return what(*given)

    monkeypatch.setattr(asyncio, "to_thread", at_once)
    yield found
    found.close()


def load_of(**more) -> Sending:
    given = {"requests": list(range(5)), "send": None, "clients": 2}
    return Sending(**given | more)


def answered(request: int, lasts: float, begin: float) -> SimpleNamespace:
    half = {"ttft": lasts / 2, "itl": [lasts / 2]}
    given = {"output_tokens": 4, "prompt_len": 7, "generated_text": f"{request}"}
    return SimpleNamespace(success=True, start_time=begin, **half, **given)


def test_requests_come_again_with_another_salt_and_all_are_answered(loop):
    sent = []

    async def send(request, salt):
        sent.append((request, salt))
        begin = loop.time()
        await asyncio.sleep(2)
        return answered(request, 2, begin)

    async def go():
        async with Traffic(load_of(send=send)) as traffic:
            await asyncio.sleep(11)
        return traffic

    traffic = loop.run_until_complete(go())
    assert not traffic.under_way
    assert len(traffic.answers) == len(sent) == 12
    assert sum(traffic.ticks.values()) == pytest.approx(4 * len(sent))
    assert [request for request, _ in sent] == [*range(5), *range(5), 0, 1]
    salts = [salt for _, salt in sent]
    assert len({*salts[:5]}) == len({*salts[5:10]}) == 1
    assert len({*salts}) == 3


def test_what_comes_at_random_comes_alike_in_all_stretches_of_a_block(loop):
    sent = []

    async def send(request, salt):
        sent.append((loop.time(), request, salt))
        return answered(request, 1, loop.time())

    async def go():
        given = load_of(send=send, clients=None, rate=4.0, requests=range(9999))
        async with Traffic(given) as traffic:
            for block in (0, 0, 1):
                traffic.begin(block)
                await asyncio.sleep(10)

    loop.run_until_complete(go())
    by_salt = {}
    for at, request, salt in sent:
        by_salt.setdefault(salt, []).append((at % 10, request))
    one, again, other = by_salt.values()
    assert [pytest.approx(each) for each in one] == again
    assert other[0][1] == len(one)
    assert [at for at, _ in other] != [at for at, _ in one]


def test_requests_come_at_the_times_of_a_trace_or_at_random():
    requests = [SimpleNamespace(timestamp=time) for time in (0.0, 1.0, 4.0)]
    timed = load_of(requests=requests, clients=None)
    ahead = [due for due, _ in zip(timed.dues(1, 0), range(5), strict=False)]
    third = 4 / 3
    assert ahead == pytest.approx([0, 3, 3 + third, 4 + third, 7 + third])
    drawn = load_of(clients=None, rate=10.0)
    dues = [due for due, _ in zip(drawn.dues(0, 7), range(4000), strict=False)]
    assert dues == [due for due, _ in zip(drawn.dues(3, 7), range(4000), strict=False)]
    assert dues[-1] == pytest.approx(400, rel=0.05)


class Site:
    """A server that takes any policy, and says how it was asked."""

    is_switched = True

    def __init__(self):
        self.policy, self.taken, self.watched = "", [], 0

    @contextlib.contextmanager
    def serve(self, policy):
        self.policy = policy
        self.taken.append(policy)
        yield self

    def switch(self, policy):
        self.policy = policy
        self.taken.append(policy)

    def figures(self, policy):
        assert policy == self.policy
        return Scrape(2, None if policy == "off" else 1000.0, {})

    def watch(self):
        self.watched += 1


def ran(loop, site, policies, minutes, least=0.0, gain=1.0, stretch=None, **more):
    """A trial whose server takes about 4 s for an answer, and less with adaptive."""
    drawn = random.Random(1)

    async def send(request, salt):
        begin = loop.time()
        lasts = drawn.uniform(3, 5) * (gain if site.policy == "adaptive" else 1.0)
        await asyncio.sleep(lasts)
        return answered(request, lasts, begin)

    @contextlib.asynccontextmanager
    async def sending(_):
        yield load_of(**{"send": send} | more)

    given = SimpleNamespace(args=SimpleNamespace(seed=1), sending=sending)
    times = Times(60 * least, 60 * minutes, stretch)
    found, shown = Switchback(site, given, policies, times), []
    loop.run_until_complete(found.run(lambda *said: shown.append(said)))
    return found, shown


def test_a_plain_difference_ends_the_trial_early(loop):
    found, shown = ran(loop, Site(), ["off", "adaptive"], 20, gain=0.5)
    assert LEAST_BLOCKS <= found.judged.blocks < 12
    latency = found.intervals()["adaptive"]
    assert latency.differs
    assert latency.ratios[0] == pytest.approx(0.5, abs=0.15)
    said, share = shown[-1]
    assert "blocks, adaptive 0." in said
    assert 0 < share < 0.6
    longer, _ = ran(loop, Site(), ["off", "adaptive"], 20, least=15, gain=0.5)
    assert longer.end - longer.begin >= 900


def test_stretches_last_three_answers_and_half_of_one_is_left_out(loop):
    """Those that come at random last a minute at least, and a whole one is left out."""
    found, _ = ran(loop, Site(), ["off", "adaptive"], 6)
    lasts = {round(s.end - s.begin, 2) for s in found.judged.stretches}
    assert min(lasts) == pytest.approx(12, abs=1)
    assert found.measured.washout == pytest.approx(2, abs=0.2)
    assert found.end - found.begin < 6 * 60 + 30
    given, _ = ran(loop, Site(), ["off", "adaptive"], 6, stretch=5)
    assert given.measured.washout == pytest.approx(2, abs=0.2)
    assert report.warnings(given.judged)[0].startswith("Stretches of 5 s")
    traffic = {"clients": None, "rate": 2.0, "requests": range(9999)}
    drawn, _ = ran(loop, Site(), ["off", "adaptive"], 4, **traffic)
    assert drawn.measured.washout == pytest.approx(4, abs=0.4)
    lasts = [s.end - s.begin for s in drawn.judged.stretches]
    assert lasts == pytest.approx([60.0] * len(lasts), abs=1)


def test_stretches_get_longer_if_answers_do_as_far_as_the_time_allows(loop):
    """As a queue grows that the warm-up did not see."""

    async def send(request, salt):
        begin = loop.time()
        lasts = 3.0 if begin < started + 40 else 24.0
        await asyncio.sleep(lasts)
        return answered(request, lasts, begin)

    traffic = {"clients": None, "rate": 2.0, "requests": range(9999), "send": send}
    for minutes, expected in ((40, 144), (10, 60)):
        started = loop.time()
        found, _ = ran(loop, Site(), ["off", "adaptive"], minutes, **traffic)
        lasts = {s.end - s.begin for s in found.judged.stretches}
        assert min(lasts) == pytest.approx(expected, abs=4)
        assert max(lasts) == pytest.approx(expected, abs=4)
        assert found.judged.blocks >= LEAST_BLOCKS
        assert found.judged.stretches[0].block == 0
        assert found.end - found.begin < 60 * minutes + expected


def test_policies_take_the_server_in_random_blocks(loop):
    site = Site()
    policies = names_of(["off", "off", "adaptive"])
    assert policies == ["off", "off#2", "adaptive"]
    found, _ = ran(loop, site, policies, 6)
    stretches = found.judged.stretches
    names = iter([stretch.policy for stretch in stretches])
    blocks = {*zip(names, names, names, strict=True)}
    assert all(sorted(block) == sorted(policies) for block in blocks)
    assert len(blocks) > 1
    assert {*site.taken} == {"off", "adaptive"}
    befores = [s.before for s in stretches[1:]]
    assert befores == [s.policy for s in stretches[:-1]]
    assert site.watched > 10


def test_each_stretch_has_a_server_where_it_is_not_switched(loop):
    site = Site()
    site.is_switched = False
    found, _ = ran(loop, site, ["off", "adaptive"], 1.5)
    assert len(site.taken) == len(found.measured.stretches) == 2 * LEAST_BLOCKS
    assert {s.before for s in found.measured.stretches} == {None}
    assert found.measured.washout == pytest.approx(4, abs=0.4)


def test_a_request_that_fails_ends_the_trial_with_the_reason(loop):
    async def send(request, salt):
        return SimpleNamespace(success=False, error="a\nTimeoutError: b")

    with pytest.raises(UsageError, match="a request failed: TimeoutError: b"):
        ran(loop, Site(), ["off", "adaptive"], 3, send=send)


def test_a_folder_that_has_something_is_refused(tmp_path):
    command._refuse_taken(tmp_path / "new")
    (begun := tmp_path / "begun" / "report").mkdir(parents=True)
    command._refuse_taken(begun.parent)
    (begun / "report.json").touch()
    for taken in (begun.parent, tmp_path):
        with pytest.raises(UsageError, match="has something already"):
            command._refuse_taken(taken)


def test_a_report_has_what_the_stretches_say(tmp_path, capsys, monkeypatch, loop):
    (tmp_path / "report").mkdir()
    found, _ = ran(loop, Site(), ["off", "adaptive"], 6, gain=0.5)
    about = {"command": "vllm-balance trial", "device": "Ascend910B3", "dispatch": "x"}
    monkeypatch.setattr(report, "usable_cores", lambda: 3)
    report.write(tmp_path, found, about)
    document = json.loads((tmp_path / "report" / "report.json").read_text())
    adaptive = document["policies"]["adaptive"]
    assert adaptive["ratios"][JUDGED]["high"] < 1
    assert adaptive["differs"]
    assert (document["ranks"], document["exchange_us"]) == (2, 1000.0)
    shown = [s[JUDGED] for s in document["stretches"] if s["policy"] == "adaptive"]
    assert adaptive["mean"][JUDGED] == pytest.approx(math.fsum(shown) / 6)
    page = (tmp_path / "report" / "report.md").read_text()
    said = capsys.readouterr().out
    verdict = "% earlier than with off (likely "
    assert verdict in page
    assert verdict in said
    assert "Ascend910B3; 3 cores" in page
    assert "from 2 clients, one after the other" in page
    answers = json.loads((tmp_path / "answers.json").read_text())
    assert {tuple(answer[1:3]) for answer in answers} == {(7, 4)}
    pixels = image.imread(tmp_path / "report" / "trial.png")
    for colour in (*picture.COLOURS[:2], picture.BASE, picture.BETTER):
        wanted = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        assert (abs(pixels[..., :3] - wanted).max(axis=-1) < 0.01).sum() > 50


def test_nothing_that_is_worse_or_unknown_is_green():
    less = {"low": 0.8, "mean": 0.9, "high": 0.95}
    assert picture.colour_of(JUDGED, less) == picture.BETTER
    assert picture.colour_of(RATE, less) == picture.WORSE
    for ratio in (less | {"high": 1.2}, None):
        assert picture.colour_of(TTFT, ratio) == picture.UNKNOWN


def test_answers_that_last_longer_than_what_is_left_out_are_warned_of():
    def warnings(seconds, clients=4):
        stretches = [
            Stretch(n // 2, "ab"[n % 2], None, seconds * n, seconds * (n + 1))
            for n in range(20)
        ]
        answers = steady(4, 0, 20 * seconds, 8.0)
        washout = min(8.0, seconds / 2)
        measured = Measured(answers, {}, [], stretches, washout, clients)
        return report.warnings(measured)

    (said,) = warnings(10)
    assert "Give --stretch 24" in said
    assert warnings(24) == []
    assert "Give --stretch 60" in warnings(24, clients=None)[0]
    assert warnings(48, clients=None) == []


# ---- The command line


def given(text: str) -> "command.CommandLine":
    return command.parse(shlex.split(text))


def test_its_words_are_its_own_but_for_a_question(monkeypatch, capsys):
    words = ["--minutes", "2", "--num-prompts", "9", "--", "vllm", "serve", "--help"]
    ran = []
    monkeypatch.setattr(command, "run", lambda chosen: ran.append(chosen.words))
    assert main(["trial", *words]) == 0
    with pytest.raises(SystemExit) as ended:
        main(["trial", "--minutes", "many", "--help", "--", "vllm", "serve"])
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    for said in ("--policy", "--deployment", "--minutes", "-- vllm serve MODEL"):
        assert said in shown
    assert ran == [words]


SERVE = "-- vllm serve MODEL --port 9"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "give either"),
        (f"--deployment off=http://h:1 {SERVE}", "and not both"),
        ("--deployment off", "POLICY=http://HOST:PORT"),
        ("--deployment off=http://h:1 --deployment off=http://h:2", "each policy once"),
        ("--deployment off=http://h:1", "give two or more"),
        ("--deployment off=http://:1 --deployment cap=http://h:1", "is no address"),
        (f"--policy off {SERVE}", "give two or more"),
        (f"--policy off cap:margin=3 {SERVE}", "--policy cap:margin=3: a server has"),
        (f"--minutes 0 {SERVE}", "argument --minutes: 0: give"),
        (f"{SERVE} --data_parallel_balance=off", "out; --policy says what"),
        (f"{SERVE} --disable-log-stats", "leave it out; the policies could"),
    ],
)
def test_what_would_void_the_comparison_is_refused(text, said):
    with pytest.raises(UsageError, match=said):
        command.trial(given(text))


def test_the_report_shows_numbers_and_hides_names():
    words = (
        "--dataset-name sharegpt --dataset-path /home/me/x.json --request-rate inf "
        "--header Authorization=hunter2 --random-range-ratio .4 "
        "-- vllm serve /models/secret -dp 4 --port 8000 --host 10.0.0.7 "
        "--api-key hunter2 --served-model-name=secret --dtype bfloat16 "
        """--max-num-seqs=64 --additional-config '{"a":"/etc"}'"""
    )
    shown = command.shown(given(words), ["off", "adaptive"])
    for secret in ("secret", "hunter2", "10.0", "8000", "/"):
        assert secret not in shown
    for told in ("-dp 4", "--dtype bfloat16", "--max-num-seqs 64", "--policy off adap"):
        assert told in shown
    for told in ("--dataset-name sharegpt", "--request-rate inf", "-ratio .4"):
        assert told in shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("/data/jane/Qwen3-30B-A3B/", "Qwen3-30B-A3B"),
        ("../jane/model", "model"),
        ("s3://bucket/jane/model", "model"),
        ("Qwen/Qwen3-30B-A3B", "Qwen/Qwen3-30B-A3B"),
        ("jane/model", "model"),  # a folder that is there
    ],
)
def test_a_model_is_shown_without_its_folder(tmp_path, monkeypatch, name, shown):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jane/model").mkdir(parents=True)
    assert command.shown_model(name) == shown
