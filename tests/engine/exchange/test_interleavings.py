"""Every interleaving up to a bound, and that it finds what is broken by hand."""

import gc

import pytest

from explore import Explorer, Setting, draw, everyday, replay, world_of
from mutants import MUTANTS, mutated
from world import controlled

BOUND = "2 ranks, 2 events"


@pytest.fixture(autouse=True)
def _worlds():
    gc.disable()
    with controlled():
        yield
    gc.enable()


@pytest.mark.parametrize("setting", everyday(), ids=str)
def test_nothing_hangs_whatever_comes_first(setting):
    found = Explorer(setting).depth_first()
    print(found)
    assert not found.fault, str(found)


@pytest.mark.parametrize("name", MUTANTS)
def test_what_is_broken_by_hand_is_found_and_replayed(name):
    setting, changes = MUTANTS[name]
    with mutated(*changes):
        found = Explorer(Setting.of(f"{setting}, {BOUND}")).depth_first()
        print(name, found)
        assert found.fault
        run = f"{found.setting}: {'; '.join(found.run)}"
        assert replay(run).fault == found.fault
    assert not replay(run).fault


def test_a_rank_that_takes_a_request_is_in_its_wave_at_once():
    """As the others are, which are told that somebody has begun one."""
    world = world_of(Setting.of(f"off, sync, waves, {BOUND}"))
    world.take("request 0 1")
    world.take("deliver client>0")
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
    runs = [[draw(seed).run for seed in range(3)] for _ in range(2)]
    assert runs[0] == runs[1]
    assert all(runs[0])
