"""Takes every choice of `world` up to a bound, or draws: `docs/interleavings.md`."""

import argparse
import copy
import gc
import itertools
import json
import math
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    os.environ["HF_HUB_OFFLINE"] = "1"
    sys.path += [str(Path(__file__).parents[2] / each) for each in ("bench", "tools")]

import vllm
from vllm.engine.arg_utils import EngineArgs

from dp_ranks import HOW, loop_arguments
from vllm_balance.reference import tiny_models
from world import Fault, World, controlled, recorded

ROOT = Path(__file__).parents[2]
THEMES = {
    "waves": ("request 0 1", "request 1 6", "abort"),
    "pauses": ("request 1 6", "pause keep", "pause wait", "pause abort", "resume"),
    "losses": ("request 1 1", "lose 0", "lose 1"),
    "switches": ("request 0 6", "request 1 1", "switch off", "switch align"),
    "resizes": ("request 0 6", "request 1 1", "resize"),
}
"""Which events there are: requests say their rank, and the tokens of the answer."""
OF_OFF = "waves", "pauses"
POLICIES = ("off", "cap", "align", "adaptive")


@dataclass(frozen=True)
class Setting:
    policy: str
    how: str
    theme: str
    """Or `all` but resizes, in which upstream by itself may hang beside an abort."""
    ranks: int = 2
    events: int = 2

    @classmethod
    def of(cls, name):
        policy, how, theme, ranks, events = name.split(", ")
        return cls(policy, how, theme, int(ranks.split()[0]), int(events.split()[0]))

    def __str__(self):
        numbers = f"{self.ranks} ranks, {self.events} events"
        return f"{self.policy}, {self.how}, {self.theme}, {numbers}"

    @property
    def alphabet(self):
        """The events; with `off` nothing could switch, or notice a loss."""
        names = [self.theme]
        if self.theme == "all":
            names = OF_OFF if self.policy == "off" else (*OF_OFF, "losses", "switches")
        return [*dict.fromkeys(itertools.chain(*map(THEMES.get, names)))]

    @property
    def step_s(self):
        """Seconds of a step: only `adaptive` decides by them."""
        return 0.01 if self.policy == "adaptive" else 0.0


@cache
def _config(policy, how, ranks):
    with tempfile.TemporaryDirectory() as folder:
        arguments = loop_arguments(
            tiny_models.make("moe", Path(folder)),
            data_parallel_size=ranks,
            max_num_seqs=1,
            max_num_batched_tokens=16,
            max_model_len=64,
            enable_prefix_caching=False,
            additional_config={"kv_blocks": 8},
            **HOW[how],
            **({} if policy == "off" else {"data_parallel_balance": policy}),
        )
        return EngineArgs(**arguments).create_engine_config()


def _config_of(setting, place):
    config = copy.copy(_config(setting.policy, setting.how, setting.ranks))
    config.parallel_config = parallel = copy.copy(config.parallel_config)
    parallel.data_parallel_rank = parallel.data_parallel_rank_local = place
    parallel.data_parallel_index = place
    return config


def world_of(setting):
    return World(setting, partial(_config_of, setting))


@dataclass
class Found:
    """What an exploration has come to."""

    setting: Any
    runs: int = 0
    states: int = 0
    seconds: float = 0.0
    is_whole: bool = True
    fault: str = ""
    run: tuple[str, ...] = ()
    calls: list[Any] = field(default_factory=list)
    """Each run, with what the ranks have called, if that is recorded."""

    def __str__(self):
        said = f"{self.setting}: {self.runs} runs, {self.states} states, "
        said += f"{self.seconds:.1f} s{'' if self.is_whole else ', not all'}"
        if self.fault:
            said += f"\n{self.fault}:\n  " + "\n  ".join(self.run)
            said += f"\nmake explore RUN='{self.setting}: {'; '.join(self.run)}'"
        return said


class Explorer:
    """Takes each choice in each state once; states that are equal are one."""

    def __init__(self, setting, ends_at=math.inf, longest=math.inf):
        self._ends_at, self._longest = ends_at, longest
        self._seen: dict[int, tuple[int, list[str]]] = {}
        """By state, how many events were left at most, and the run that led there."""
        self.equal: list[tuple[list[str], list[str]]] = []
        """Runs that led to states that are taken for equal."""
        self.found = Found(setting)

    def search(self, shortest=False):
        """All runs, each as far as it is new; or the shortest that has a fault."""
        began, found = time.monotonic(), self.found
        prefixes = deque([()])
        while prefixes and not found.fault and found.is_whole:
            prefix = prefixes.popleft() if shortest else prefixes.pop()
            prefixes.extend(self._run(prefix, go_on=not shortest))
            found.runs += 1
            found.is_whole = time.monotonic() < self._ends_at
            if found.runs % 500 == 0:
                gc.collect()
        found.seconds = time.monotonic() - began
        return found

    def _run(self, prefix, go_on):
        """Returns the beginnings of the runs that it leaves to others."""
        world, run, here, left = world_of(self.found.setting), [], {}, []
        try:
            for choice in prefix:
                run.append(choice)
                world.take(choice)
            while options := world.options():
                key, budget = hash(world.key()), world.budget
                if key in here and not {*options} - {*run[here[key] :]}:
                    raise Fault("all go on for ever")
                most, before = self._seen.get(key, (-1, []))
                if most >= budget:
                    self.equal += [(before, run)] if most == budget else []
                    return left
                self._seen[key], here[key] = (budget, run[:]), len(run)
                self.found.states += 1
                if world.may_rest(options):
                    world.check_rest()
                if len(run) >= self._longest:
                    return left
                first = [options.pop(0)] if go_on else []
                left += [(*run, each) for each in reversed(options)]
                if not first:
                    return left
                run += first
                world.take(*first)
            world.check_rest()
        except Fault as fault:
            self.found.fault, self.found.run = str(fault), tuple(run)
        finally:
            world.close()
            if world.calls:
                self.found.calls.append(["; ".join(run), world.calls])
        return left


def first_fault(setting, ends_at):
    """What an exploration finds, and the shortest run that has a fault."""
    with controlled():
        found = Explorer(setting, ends_at).search()
        for events in range(1, setting.events + 1) if found.fault else ():
            fewer = replace(setting, events=events)
            soon = time.monotonic() + 60
            short = Explorer(fewer, soon, len(found.run)).search(shortest=True)
            if short.fault:
                return replace(found, setting=fewer, fault=short.fault, run=short.run)
    return found


def follow(setting, choose, most=500):
    """One run, whose choices are chosen among the options; its fault, if it has one."""
    world, found = world_of(setting), Found(setting, runs=1)
    try:
        while (options := world.options()) and len(found.run) < most:
            choice = choose(options)
            if choice is None:
                break
            found.run += (choice,)
            world.take(choice)
        world.budget = 0
        for _ in range(most):  # to rest
            if not (options := world.options()):
                world.check_rest()
                break
            world.take("resume" if "resume" in options else options[0])
        else:
            raise Fault("all go on for ever")
    except Fault as fault:
        found.fault = str(fault)
    finally:
        world.close()
    return found


def replay(text):
    """The run `SETTING: CHOICE; CHOICE`, as a fault prints it."""
    name, _, run = text.partition(": ")
    choices = iter(run.split("; "))
    return follow(Setting.of(name), lambda _: next(choices, None))


def draw(seed):
    """A run of many events, which a seed decides."""
    rng = random.Random(seed)
    policy, how, ranks = rng.choice(POLICIES), rng.choice([*HOW]), rng.choice((2, 3))
    setting = Setting(policy, how, "all", ranks, events=rng.choice((4, 8, 16)))
    hurry = rng.choice((0.1, 0.5, 1.0))
    """Of the choices, how many are not the first."""

    def choose(options):
        return rng.choice(options) if rng.random() < hurry else options[0]

    return follow(setting, choose)


def settings(*themes, **bound):
    for policy, how, theme in itertools.product(POLICIES, HOW, themes):
        if policy != "off" or theme in OF_OFF:
            yield Setting(policy, how, theme, **bound)


def everyday():
    """What `make test` takes a minute for."""
    yield from settings("waves", "pauses", "switches", events=1)
    yield Setting("cap", "sync", "waves")
    yield Setting("cap", "async", "losses")
    yield Setting("adaptive", "async", "resizes", ranks=3, events=1)


def whole():
    """What `make explore` takes an hour of two cores for at most."""
    yield Setting("cap", "sync", "waves", events=3)
    yield from settings(*THEMES)
    yield from settings(*THEMES, ranks=3, events=1)


def explore_each(chosen, minutes):
    """Each as it ends; whether one has a fault, or is not whole."""
    began = time.monotonic()
    one = partial(first_fault, ends_at=began + 60 * minutes)
    total, is_bad = Found("all"), False
    with multiprocessing.Pool(2) as pool:
        for number, found in enumerate(pool.imap_unordered(one, chosen), 1):
            total.runs, total.states = (
                total.runs + found.runs,
                total.states + found.states,
            )
            total.is_whole &= found.is_whole
            total.seconds = time.monotonic() - began
            is_bad |= bool(found.fault)
            print(
                f"[{number} of {len(chosen)}, {total.seconds:.0f} s] {found}",
                flush=True,
            )
    print(total)
    return is_bad or not total.is_whole


def calls_of(setting):
    """Of each run, the calls of upstream's methods that the ranks make."""
    with controlled(), recorded():
        return Explorer(setting).search().calls


def upstream_alone(tree, *arguments):
    """Begins again with upstream's package, which has our files, but no hooks."""
    folder, ours = tempfile.mkdtemp(), Path(vllm.__file__).parent
    for source, part in (tree, ""), (ours, "fixes"), (ours, "v1/core/sched/balance"):
        target = Path(folder, "vllm", part)
        shutil.copytree(source / part, target, copy_function=os.symlink)
    changed = {"VLLM_CACHE_ROOT": folder, "PYTHONPATH": folder}
    environment = os.environ | changed | {"VLLM_PLUGINS": "reference"}
    os.execve(sys.executable, [sys.executable, __file__, *arguments], environment)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--upstream", type=Path, metavar="VLLM", help="of it alone")
    parser.add_argument("--replay", metavar="RUN", help="what a fault has printed")
    parser.add_argument("--seed", type=int, help="draw runs for ever, from this on")
    parser.add_argument("--only", metavar="SETTING", nargs="+", help="not all")
    parser.add_argument("--calls", metavar="SETTING", help="of the ranks, of one")
    parser.add_argument("--minutes", type=float, default=60)
    options, given = parser.parse_args(), sys.argv[1:]
    gc.disable()
    if options.upstream:
        at = given.index("--upstream")
        upstream_alone(options.upstream.absolute(), *given[:at], *given[at + 2 :])
    if options.calls:
        return print(json.dumps(calls_of(Setting.of(options.calls))))
    if options.replay:
        with controlled():
            return print(replay(options.replay))
    if options.seed is not None:
        with controlled():
            for seed in itertools.count(options.seed):
                if (found := draw(seed)).fault:
                    return f"seed {seed}: {found}"
    chosen = map(Setting.of, options.only) if options.only else whole()
    return explore_each([*chosen], options.minutes)


if __name__ == "__main__":
    sys.exit(main())
