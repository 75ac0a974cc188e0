"""Upstreams that invite a wrong placement: each is placed right or reported."""

from collections.abc import Callable

import pytest

from balance_tools.hooks.model import PatchStatus
from rebase_samples import (
    ENGINE,
    EXCHANGE,
    SYNC,
    UPSTREAM,
    WITH_EXCHANGE,
    Files,
    make_sdist,
    misplaced,
    patched_engine,
    rebase,
    replaced,
    statuses,
    tracked,
    write_tree,
)

LOOP = ENGINE[ENGINE.index(b"    def loop(") : ENGINE.index(b"    def schedule(")]
SCHEDULE = ENGINE[ENGINE.index(b"    def schedule(") : ENGINE.index(b"    def sync(")]


def engine(*changes):
    return {**UPSTREAM, "vllm/engine.py": replaced(ENGINE, *changes)}


def sdist(folder, files):
    return make_sdist(folder, "vllm-2.0", files)


# name: (upstream, patch that stops, its status, part of what is said)
REFUSED: dict[str, tuple[Files, str, str, str]] = {
    "anchor duplicated": (
        engine((SYNC, SYNC + b"            self.note()\n" + SYNC)),
        "exchange.patch",
        "conflict",
        "occurs 2 times in Engine.loop",
    ),
    "function renamed": (
        engine((b"    def loop(self):", b"    def run_loop(self):")),
        "exchange.patch",
        "target-deleted",
        "Engine.loop does not exist any more",
    ),
    "moved to a new module": (
        {"vllm/__init__.py": b"", "vllm/core/engine.py": ENGINE},
        "gate.patch",
        "target-deleted",
        "vllm/engine.py is gone",
    ),
    "no longer Python": (
        engine((b"class Engine(Base):", b"class Engine(Base:")),
        "gate.patch",
        "conflict",
        "not valid Python",
    ),
    "put on one line": (
        engine((b"running = []\n        self.waiting", b"running = []; self.waiting")),
        "gate.patch",
        "conflict",
        "formats this code otherwise",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_clear_place_is_refused_with_the_reason(
    name, root, tmp_path, capsys
):
    files, patch, status, reason = REFUSED[name]
    before = tracked(root)
    code = rebase(root, "--sdist", str(sdist(tmp_path, files)))
    said = capsys.readouterr().err
    assert statuses(root, "2.0")[patch] == status, said
    assert code == {one.label: one.exit_code for one in PatchStatus}[status]
    assert reason in said
    assert "vllm/engine.py" in said
    assert tracked(root) == before


def reformatted():
    """The same code as another formatter would write it."""
    return replaced(
        ENGINE,
        (SYNC, b"            self.active = self.sync(executed)\n"),
        (b'"""Sample engine."""\n\n', b"'''Sample engine.'''\n"),
        (
            b"len(self.running) == self.limit",
            b"(len(self.running)\n             == self.limit)",
        ),
    ).replace(b"    ", b"  ")


PLACED: dict[str, Callable[[], bytes]] = {
    "formatted by another formatter": reformatted,
    "CRLF": lambda: ENGINE.replace(b"\n", b"\r\n"),
    "a byte-order mark": lambda: b"\xef\xbb\xbf" + ENGINE,
    "functions in another order": lambda: (
        ENGINE.replace(LOOP, b"").replace(SCHEDULE, b"") + b"\n" + SCHEDULE + LOOP
    ),
    "a copy of the loop above it": lambda: replaced(
        ENGINE, (LOOP, LOOP.replace(b"def loop", b"def old_loop") + LOOP)
    ),
}


@pytest.mark.parametrize("name", PLACED)
def test_what_is_clear_is_placed_right(name, root, tmp_path):
    upstream = PLACED[name]()
    files = {**UPSTREAM, "vllm/engine.py": upstream}
    assert rebase(root, "--sdist", str(sdist(tmp_path, files))) == 0
    patched = patched_engine(root / "patches/vllm", write_tree(tmp_path / "t", files))
    assert misplaced(patched) == []
    ending = b"\r\n" if b"\r\n" in upstream else b"\n"
    assert patched.count(b"\n") == patched.count(ending)
    assert patched.startswith(upstream[:3])


def test_merged_verbatim_is_proposed_and_never_dropped_by_itself(root, tmp_path):
    archive = sdist(tmp_path, {**UPSTREAM, "vllm/engine.py": WITH_EXCHANGE})
    assert rebase(root, "--sdist", str(archive)) == 3
    found = statuses(root, "2.0")
    assert found.pop("defer.patch") == "untouched"
    assert set(found.values()) == {"already-upstream"}


def test_merged_verbatim_at_another_place_is_a_conflict(root, tmp_path):
    step = b"            executed = self.step()\n"
    archive = sdist(tmp_path, engine((step, step + EXCHANGE)))
    assert rebase(root, "--sdist", str(archive)) == 5
    assert statuses(root, "2.0")["exchange.patch"] == "conflict"
