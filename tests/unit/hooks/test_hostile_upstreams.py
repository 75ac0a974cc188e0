"""Upstreams that invite a wrong placement: each is placed right or reported."""

import pytest

from balance_tools.hooks.model import PatchStatus
from balance_tools.hooks.placement import decide
from rebase_samples import ENGINE, EXCHANGE, SYNC, WITH_EXCHANGE, misplaced, replaced

LOOP = ENGINE[ENGINE.index(b"    def loop(") : ENGINE.index(b"    def schedule(")]
SCHEDULE = ENGINE[ENGINE.index(b"    def schedule(") : ENGINE.index(b"    def sync(")]
CONFLICT, GONE = PatchStatus.CONFLICT, PatchStatus.TARGET_DELETED
STEP = b"            executed = self.step()\n"


def moved(upstream):
    """What becomes of the four hooks."""
    return decide("engine.py", ENGINE, WITH_EXCHANGE, upstream, "new")


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        (
            (SYNC, SYNC + STEP + SYNC),
            CONFLICT,
            "occurs 2 times in Engine.l",
        ),
        ((STEP, STEP + EXCHANGE), CONFLICT, "itself uses"),
        (
            (b"loop(self)", b"run(self)"),
            GONE,
            "does not exist any",
        ),
        (None, GONE, "engine.py is gone"),
        ((b"(Base):", b"(Base:"), CONFLICT, "not valid Python"),
        (
            (b"running = []\n        self.wait", b"running = []; self.wait"),
            CONFLICT,
            "formats this code otherwise",
        ),
    ],
)
def test_what_has_no_clear_place_is_refused_with_the_reason(change, status, reason):
    found = moved(replaced(ENGINE, change) if change else None)
    assert found.status is status
    said = [*found.notes, *(hook.note for hook in found.hooks)]
    assert any(reason in one for one in said), said


FORMATTED = replaced(
    ENGINE,
    (SYNC, b"            self.active = self.sync(executed)\n"),
    (b'"""Sample engine."""\n\n', b"'''Sample engine.'''\n"),
    (b"ing) == self.limit", b"ing\n            ) == self.limit"),
).replace(b"    ", b"  ")
PLACED = {
    "formatted by another formatter": FORMATTED,
    "functions in another order": ENGINE.replace(LOOP, b"").replace(SCHEDULE, b"")
    + b"\n"
    + SCHEDULE
    + LOOP,
    "a copy of the loop above it": replaced(
        ENGINE, (LOOP, LOOP.replace(b"def loop", b"def old_loop") + LOOP)
    ),
}


@pytest.mark.parametrize("name", PLACED)
def test_what_is_clear_is_placed_right(name):
    found = moved(PLACED[name])
    assert found.status is PatchStatus.CONTEXT_ONLY
    assert misplaced(found.content) == []
