"""A hook goes where it was meant to be, or it is said why not."""

import pytest

from balance_tools.hooks.hook import hooks_between
from balance_tools.hooks.model import PatchStatus
from balance_tools.hooks.placement import decide
from rebase_samples import ENGINE, SYNC, WITH_EXCHANGE, misplaced, replaced
from rebase_samples import EXCHANGE as HOOK

HOOKED = ENGINE.replace(SYNC, SYNC + HOOK)


def moved(upstream, base=ENGINE, patched=HOOKED):
    """What becomes of a patch on `upstream`: status, new content, and what is said."""
    verdict = decide("m.py", base, patched, upstream, "new")
    said = "; ".join([*verdict.notes, *(hook.note for hook in verdict.hooks)])
    return verdict.status, verdict.content or b"", said


def test_a_hook_is_described_by_scope_blocks_and_neighbours():
    (hook,) = hooks_between(ENGINE, HOOKED)
    assert hook.scope == "Engine.loop"
    assert [step.owner.kind for step in hook.old.path] == ["While"]
    texts = [one.text for one in hook.neighbours if one]
    assert texts == ["self.active = self.sync(executed)", "if not self.active:"]
    assert hook.line == HOOKED.splitlines().index(HOOK.rstrip()) + 1


def test_neighbours_that_changed_places_are_a_conflict():
    wave = b"                self.wave += 1\n"
    upstream = ENGINE.replace(SYNC, b"            note()\n").replace(wave, wave + SYNC)
    status, _, said = moved(upstream)
    assert status is PatchStatus.CONFLICT
    assert "have changed places" in said


@pytest.mark.parametrize(
    ("added", "status"),
    [
        (b"self.count += 1\n", PatchStatus.CONTEXT_ONLY),
        (b"self.active = 0\n", PatchStatus.CONFLICT),
    ],
)
def test_what_upstream_put_between_may_share_no_names(added, status):
    upstream = ENGINE.replace(SYNC, SYNC + b"            " + added)
    found, content, said = moved(upstream)
    assert found is status
    assert "upstream put" in said
    if status is PatchStatus.CONTEXT_ONLY:
        assert content == upstream.replace(SYNC, SYNC + HOOK)


def test_a_keyword_argument_is_placed_among_new_ones():
    old = b"def f():\n    return Stats(\n        a=1,\n        b=2,\n    )\n"
    new = old.replace(b"b=2,\n", b"b=2,\n        ours=3,\n")
    upstream = old.replace(b"b=2,\n", b"b=2,\n        theirs=4,\n")
    status, content, _ = moved(upstream, old, new)
    assert status is PatchStatus.CONTEXT_ONLY
    assert content == upstream.replace(b"b=2,\n", b"b=2,\n        ours=3,\n")


@pytest.mark.parametrize(
    "patched",
    [
        ENGINE.replace(b"self.wave += 1", b"self.wave += 2"),
        HOOKED.replace(b"# 3) All-reduce.", b"# 3) All-reduce.\n            # Why."),
        ENGINE.replace(b"            scheduled.append(request)\n", b""),
    ],
)
def test_a_patch_that_does_more_than_add_code_is_a_conflict(patched):
    status, content, said = moved(ENGINE, patched=patched)
    assert (status, content) == (PatchStatus.CONFLICT, ENGINE)
    assert "expected hooks that only add code" in said


def test_words_that_upstream_uses_count_but_not_those_of_a_path():
    """What it uses may be the hook itself, merged in other words."""
    old = b"import os\nimport sys\n"
    upstream, line = old + b"gate = rank = 1\n", b"from gate.rank import create_gate\n"
    status, content, _ = moved(upstream, old, old + line)
    assert status is not PatchStatus.CONFLICT
    assert line in content
    _, _, said = moved(upstream, old, old + b"from gate.rank import gate\n")
    assert "itself uses gate" in said


LOOP = ENGINE[ENGINE.index(b"    def loop(") : ENGINE.index(b"    def schedule(")]
SCHEDULE = ENGINE[ENGINE.index(b"    def schedule(") : ENGINE.index(b"    def sync(")]
CONFLICT, GONE = PatchStatus.CONFLICT, PatchStatus.TARGET_DELETED
STEP = b"            executed = self.step()\n"


@pytest.mark.parametrize(
    ("change", "status", "reason"),
    [
        ((SYNC, SYNC + STEP + SYNC), CONFLICT, "occurs 2 times in Engine.l"),
        ((STEP, STEP + HOOK), CONFLICT, "itself uses"),
        ((b"loop(self)", b"run(self)"), GONE, "does not exist any"),
        (None, GONE, "m.py is gone"),
        ((b"(Base):", b"(Base:"), CONFLICT, "not valid Python"),
        (
            (b"running = []\n        self.wait", b"running = []; self.wait"),
            CONFLICT,
            "formats this code otherwise",
        ),
    ],
)
def test_what_has_no_clear_place_is_refused_with_the_reason(change, status, reason):
    upstream = replaced(ENGINE, change) if change else None
    found, _, said = moved(upstream, patched=WITH_EXCHANGE)
    assert found is status
    assert reason in said


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
    status, content, _ = moved(PLACED[name], patched=WITH_EXCHANGE)
    assert status is PatchStatus.CONTEXT_ONLY
    assert misplaced(content) == []
