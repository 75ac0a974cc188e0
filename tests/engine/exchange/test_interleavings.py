"""Every interleaving up to a bound: `docs/interleavings.md`."""

import json
import random
import subprocess
import sys

import pytest
from test_mutants import BOUND, in_control
from vllm import __version__

from explore import ROOT, Explorer, Setting, calls_of, draw, everyday, replay, world_of

__all__ = ["in_control"]


@pytest.mark.parametrize("setting", [*everyday()], ids=str)
def test_nothing_hangs_whatever_comes_first(setting):
    found = Explorer(setting).search()
    print(found)
    assert not found.fault, str(found)


def test_off_calls_what_upstream_calls():
    """Each method of scheduler and engine core, each collective call, in each run."""
    setting = "off, async, waves, 2 ranks, 1 events"
    tree = ROOT / f"build/pristine/vllm-{__version__}/vllm"
    command = [sys.executable, ROOT / "tests/engine/explore.py", "--upstream", tree]
    done = subprocess.run(
        [*command, "--calls", setting], stdout=subprocess.PIPE, check=True
    )
    expected = json.loads(done.stdout.splitlines()[-1])
    assert json.loads(json.dumps(calls_of(Setting.of(setting)))) == expected
    assert len(expected) > 30


@pytest.mark.parametrize(
    "name", ["cap, async, waves", "adaptive, sync, pauses", "align, sync, switches"]
)
def test_what_is_visited_once_goes_on_alike(name):
    """Two runs each that lead to equal states, some by the same choices in turn."""
    rng, setting = random.Random(name), Setting.of(f"{name}, 2 ranks, 1 events")
    explorer = Explorer(setting)
    explorer.search()
    for runs in explorer.equal:
        worlds = [world_of(setting) for _ in runs]
        for world, run in zip(worlds, runs, strict=True):
            for choice in run:
                world.take(choice)
        while options := sorted(worlds[0].options()):
            assert options == sorted(worlds[1].options())
            assert worlds[0].key() == worlds[1].key()
            choice = rng.choice(options)
            for world in worlds:
                world.take(choice)
        for world in worlds:
            world.check_rest()
            world.close()


RESIZES = {
    "a row on its way stays with the ranks that were": (
        # A rank without requests has sent its row for the step in which another leaves.
        "cap, several hosts, resizes, 2 ranks, 2 events: request 1 6 > 1; "
        "deliver client coordinator; resize > 0; deliver client 1; "
        "deliver client coordinator; deliver coordinator 0; deliver coordinator 1; "
        "deliver coordinator client; run 0; run 1; run 0; run 1"
    ),
    "a prompt that is held begins": (
        # The policy counts anew for how long prompts have been held.
        "cap, sync, resizes, 3 ranks, 4 events: request 1 1 > coordinator; "
        "deliver coordinator 2; run 2; request 0 6 > 0; run 0; deliver client 1; "
        "request 1 1 > 1; run 1; run 0; resize > 1; run 1; deliver client 2; run 2; "
        "run 1; run 2; deliver client 0; run 0; run 2; run 0; run 1; run 0; run 1; "
        "run 1"
    ),
}


@pytest.mark.parametrize("run", RESIZES.values(), ids=RESIZES)
def test_at_a_resize(run):
    assert not replay(run).fault


def test_a_rank_that_takes_a_request_is_in_its_wave_at_once():
    """As the others are, which are told that somebody has begun one."""
    world = world_of(Setting.of(f"off, sync, waves, {BOUND}"))
    world.take("request 0 1 > 0")
    is_running = world.engines[0].engines_running
    world.close()
    assert is_running


def test_the_end_of_a_wave_forgets_prompts_that_were_put_in_order():
    """No two events lead there: a prompt must wait beside a free slot."""
    world = world_of(Setting.of(f"adaptive, sync, waves, {BOUND}"))
    world.engines[0].gate._rows._order._prompts["request-0"] = None
    world.take("request 0 1")
    world.budget = 0
    while options := world.options():
        world.take(options[0])
    world.check_rest()
    world.close()


def test_a_seed_draws_the_same_run_again():
    assert draw(1).run == draw(1).run != draw(2).run
