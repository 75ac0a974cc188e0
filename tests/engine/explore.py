"""Takes every choice of `world` up to a bound, or draws: `docs/interleavings.md`."""

import argparse
import contextlib
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
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

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
"""Nothing could switch, or notice a loss."""
POLICIES = "off", "cap", "align", "adaptive"
LONGEST = 500
"""Choices of a drawn run."""


class Setting(NamedTuple):
    policy: str
    how: str
    theme: str
    """Or `all` but resizes, in which upstream by itself may hang beside an abort."""
    ranks: int = 2
    events: int = 2

    @classmethod
    def of(cls, name):
        *names, ranks, events = name.split(", ")
        return cls(*names, int(ranks.split()[0]), int(events.split()[0]))

    def __str__(self):
        return ", ".join(self[:3]) + f", {self.ranks} ranks, {self.events} events"

    @property
    def alphabet(self):
        every = OF_OFF if self.policy == "off" else [*THEMES][:4]
        names = every if self.theme == "all" else [self.theme]
        return [*dict.fromkeys(itertools.chain(*map(THEMES.get, names)))]

    @property
    def step_s(self):
        """Seconds of a step: only `adaptive` decides by them."""
        return 0.01 if self.policy == "adaptive" else 0.0

    @property
    def latest(self):
        """Steps that a message is late: of `adaptive` no two states are equal."""
        return 2 if self.policy == "adaptive" else math.inf


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


def world_of(setting):
    config = _config(setting.policy, setting.how, setting.ranks)
    configs = [copy.copy(config) for _ in range(setting.ranks)]
    for place, each in enumerate(configs):
        each.parallel_config = parallel = copy.copy(config.parallel_config)
        parallel.data_parallel_rank = parallel.data_parallel_rank_local = place
        parallel.data_parallel_index = place
    return World(setting, configs)


@dataclass
class Found:
    """What an exploration has come to."""

    setting: Setting
    runs: int = 0
    states: int = 0
    seconds: float = 0.0
    fault: str = ""
    run: tuple[str, ...] = ()

    def __str__(self):
        said = f"{self.setting}: {self.runs} runs, {self.states} states, "
        said += f"{self.seconds:.1f} s"
        if self.fault:
            said += f"\n{self.fault}:\n  " + "\n  ".join(self.run)
            said += f"\nmake explore RUN='{self.setting}: {'; '.join(self.run)}'"
        return said

    @contextlib.contextmanager
    def world(self):
        """Of one run, and the list of its choices."""
        world, run = world_of(self.setting), []
        self.runs += 1
        try:
            yield world, run
        except Fault as fault:
            self.fault = str(fault)
        finally:
            self.run = tuple(run)
            world.close()


class Explorer:
    """Takes each choice in each state once; states that are equal are one.

    Of two choices that concern nobody in common only one order is taken: what was taken
    before is asleep after the other, until somebody whom it concerns goes on.
    """

    def __init__(self, setting, most=math.inf, longest=math.inf):
        self.found, self._most, self._longest = Found(setting), most, longest
        self._seen = {}
        """By state: the most events that were left, what was asleep, and the run."""
        self.equal = []
        """Pairs of runs that lead to states that are taken for equal."""
        self.calls = []
        """Of each run, what the ranks have called, if that is recorded."""

    def search(self, shortest=False):
        """All runs, each as far as it is new; or the shortest that has a fault."""
        began, found = time.monotonic(), self.found
        left = deque([((), {}, {})])
        while left and not found.fault and found.runs < self._most:
            chosen, asleep, taken = left.popleft() if shortest else left.pop()
            with found.world() as (world, run):
                for choice in chosen:
                    run.append(choice)
                    world.take(choice)
                asleep = self._asleep(world, run, asleep, taken)
                while new := self._new(world, run, asleep, len(chosen)):
                    taken, kept = {}, new if shortest else new[1:]
                    left += [((*run, each), asleep, taken) for each in reversed(kept)]
                    if shortest:
                        break
                    run.append(new[0])
                    world.take(new[0])
                    asleep = self._asleep(world, run, asleep, taken)
            if world.calls:
                self.calls.append(["; ".join(run), world.calls])
            if found.runs % 500 == 0:
                gc.collect()
        found.seconds = time.monotonic() - began
        return found

    def _asleep(self, world, run, asleep, taken):
        """After the last choice of a run; `taken` were others in its place."""
        if not run:
            return {}
        *before, last = run
        both = asleep | taken
        taken[last] = {*world.touched}
        found = {c: whom for c, whom in both.items() if not whom & world.touched}
        for each in found:
            self.equal.append(([*run, each], [*before, each, last]))
        return found

    def _new(self, world, run, asleep, known):
        """What has to be taken now."""
        options, key = world.options(), hash(world.key())
        if not options or world.is_quiet(options):
            world.check_rest()
        most, slept, before = self._seen.get(key, (-1, {}, [*run]))
        if most < world.budget:
            self.found.states += 1
            first, *others = world.in_any_order(options) or [None]
            self.equal += [([*run, first, b], [*run, b, first]) for b in others]
            slept = {first} if first else {*options}
        elif (
            options
            and before == run[: max(known, len(before))]
            and {*options} <= {*run[len(before) :]}
        ):
            raise Fault("all go on for ever")
        elif most == world.budget:
            self.equal.append((before, [*run]))
        if most <= world.budget:
            self._seen[key] = world.budget, {*asleep} & slept, before
        new = [each for each in options if each in slept and each not in asleep]
        return new if len(run) < self._longest else []


def first_fault(setting):
    """What an exploration finds, and the shortest run that has a fault."""
    with controlled():
        found = Explorer(setting).search()
        if found.fault:
            short = Explorer(setting, 10_000, len(found.run)).search(shortest=True)
            found = short if short.fault else found
    return found


def follow(setting, choose):
    """One run: choices that are chosen among the options, and then to rest."""
    found, is_over = Found(setting), False
    with found.world() as (world, run):
        while options := world.options():
            choice = options[0] if is_over else choose(options)
            if choice is None or (len(run) == LONGEST and not is_over):
                is_over, world.budget = True, 0
                continue
            if len(run) == 2 * LONGEST:
                raise Fault("all go on for ever")
            run.append(choice)
            world.take(choice)
        world.check_rest()
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
    """What `make explore` takes at most an hour of two cores for."""
    yield Setting("cap", "sync", "waves", events=3)
    yield from settings(*THEMES)
    yield from settings("waves", "losses", "resizes", ranks=3)
    yield from settings("pauses", "switches", ranks=3, events=1)


def explore_each(chosen):
    """Each as it ends; how many have a fault."""
    began, all_found = time.monotonic(), []
    with multiprocessing.Pool(2) as pool:
        for found in pool.imap_unordered(first_fault, chosen):
            all_found.append(found)
            seconds = time.monotonic() - began
            place = f"{len(all_found)} of {len(chosen)}, {seconds:.0f} s"
            print(f"[{place}] {found}", flush=True)
    runs, states = (sum(getattr(f, n) for f in all_found) for n in ("runs", "states"))
    print(f"all: {runs} runs, {states} states, {seconds:.0f} s")
    return sum(bool(found.fault) for found in all_found)


def calls_of(setting):
    """Of each run, the calls of upstream's methods that the ranks make."""
    with controlled(recorded()):
        explorer = Explorer(setting)
        explorer.search()
    return explorer.calls


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
    parser.add_argument("settings", nargs="*", help="instead of all")
    parser.add_argument("--upstream", type=Path, metavar="VLLM", help="of it alone")
    parser.add_argument("--replay", metavar="RUN", help="what a fault has printed")
    parser.add_argument("--seed", type=int, help="draw runs for ever, from this on")
    parser.add_argument("--calls", action="store_true", help="of the ranks, of one")
    options, given = parser.parse_args(), sys.argv[1:]
    gc.disable()
    if options.upstream:
        at = given.index("--upstream")
        upstream_alone(options.upstream.absolute(), *given[:at], *given[at + 2 :])
    chosen = [*map(Setting.of, options.settings)] or [*whole()]
    if options.calls:
        return print(json.dumps(calls_of(chosen[0])))
    if not options.replay and options.seed is None:
        return explore_each(chosen)
    with controlled():
        if options.replay:
            return print(replay(options.replay))
        drawn = map(draw, itertools.count(options.seed))
        return str(next(found for found in drawn if found.fault))


if __name__ == "__main__":
    sys.exit(main())
