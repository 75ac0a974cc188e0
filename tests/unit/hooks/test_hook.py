"""A hook goes where it was meant to be, or it is said why not."""

import pytest

from balance_tools.hooks.hook import hooks_between
from balance_tools.hooks.model import PatchStatus
from balance_tools.hooks.placement import decide
from rebase_samples import ENGINE, SYNC
from rebase_samples import EXCHANGE as HOOK

HOOKED = ENGINE.replace(SYNC, SYNC + HOOK)


def moved(upstream, base=ENGINE, patched=HOOKED):
    """What becomes of a patch on `upstream`: status, new content, first reason."""
    verdict = decide("m.py", base, patched, upstream, "new")
    said = [*verdict.notes, *(hook.note for hook in verdict.hooks)]
    return verdict.status, verdict.content or b"", said[0]


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
