"""Hooks are found where they were meant to be, or it is said why not."""

import pytest

from balance_tools.hooks.proof import check_placement, placement_of
from rebase_samples import ENGINE

HOOK = b"            self.gate.exchange(self.active)\n"
SYNC = (
    b"            self.active = self.sync(\n                executed,\n            )\n"
)
HOOKED = ENGINE.replace(SYNC, SYNC + HOOK)


def problems(base: bytes, patched: bytes) -> list[str]:
    hooks = placement_of(ENGINE, HOOKED)
    return [str(problem) for problem in check_placement(hooks, base, patched)]


def test_a_hook_is_described_by_scope_blocks_and_neighbours() -> None:
    (hook,) = placement_of(ENGINE, HOOKED)
    assert hook.anchor.scope == "Engine.loop"
    assert [step.owner.kind for step in hook.anchor.path] == ["While"]
    assert str(hook.anchor) == (
        "Engine.loop, between `self.active = self.sync(executed)` and "
        "`if not self.active:`"
    )
    assert hook.line == HOOKED.splitlines().index(HOOK.rstrip()) + 1


def test_the_tree_it_was_made_for_has_no_problem() -> None:
    assert problems(ENGINE, HOOKED) == []


def test_formatting_comments_and_distance_do_not_matter() -> None:
    base = ENGINE.replace(
        SYNC, b"            self.active = self.sync(executed)  # now\n"
    )
    base = b"# one more line\n" + base.replace(b"# 3) All-reduce.", b"# sync")
    line = b"self.active = self.sync(executed)  # now\n"
    assert problems(base, base.replace(line, line + HOOK)) == []


@pytest.mark.parametrize(
    ("place", "reason"),
    [
        (b"            executed = self.step()\n", "in Engine.loop"),
        (b"        return executed\n", "in Engine.sync"),
        (b"        self.running = []\n", "in Engine.__init__"),
    ],
)
def test_a_hook_elsewhere_is_a_problem(place: bytes, reason: str) -> None:
    indent = place[: len(place) - len(place.lstrip())]
    (found,) = problems(ENGINE, ENGINE.replace(place, indent + HOOK.lstrip() + place))
    assert reason in found


def test_a_hook_in_the_copy_of_its_block_is_a_problem() -> None:
    """The text around the hook is the same in both loops."""
    copied = ENGINE.replace(
        b"    def sync(", b"    def drain(self):\n        XX\n\n    def sync("
    )
    loop = ENGINE[ENGINE.index(b"        while") : ENGINE.index(b"        raise")]
    base = copied.replace(b"        XX\n", loop)
    first, second, third = base.split(SYNC)
    assert problems(base, first + SYNC + HOOK + second + SYNC + third) == []
    (found,) = problems(base, first + SYNC + second + SYNC + HOOK + third)
    assert "in Engine.drain" in found


def test_a_missing_hook_is_a_problem() -> None:
    (found,) = problems(ENGINE, ENGINE)
    assert "not there" in found


def test_a_change_that_is_no_hook_is_a_problem() -> None:
    (found,) = problems(ENGINE, HOOKED.replace(b"self.wave += 1", b"self.wave += 2"))
    assert "belongs to no hook" in found


def test_neighbours_that_changed_places_are_a_problem() -> None:
    wave = b"                self.wave += 1\n"
    upstream = ENGINE.replace(SYNC, b"            note()\n").replace(wave, wave + SYNC)
    (found,) = problems(upstream, upstream)
    assert "have changed places" in found


def test_what_upstream_put_between_leaves_the_hook_with_what_it_uses() -> None:
    base = ENGINE.replace(SYNC, SYNC + b"            self.count += 1\n")
    assert problems(base, base.replace(SYNC, SYNC + HOOK)) == []
    later = base.replace(b"self.count += 1\n", b"self.count += 1\n" + HOOK)
    (found,) = problems(base, later)
    assert "it stands at line" in found


def test_a_keyword_argument_is_found_among_new_ones() -> None:
    old = b"def f():\n    return Stats(\n        a=1,\n        b=2,\n    )\n"
    new = old.replace(b"b=2,\n", b"b=2,\n        ours=3,\n")
    upstream = old.replace(b"b=2,\n", b"b=2,\n        theirs=4,\n")
    hooks = placement_of(old, new)
    assert [str(h.anchor) for h in hooks] == [
        "f, between `b=2` and the edge of the block"
    ]
    good = upstream.replace(b"b=2,\n", b"b=2,\n        ours=3,\n")
    assert check_placement(hooks, upstream, good) == []
    bad = upstream.replace(b"a=1,\n", b"ours=3,\n        a=1,\n")
    assert len(check_placement(hooks, upstream, bad)) == 1
