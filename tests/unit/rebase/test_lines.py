"""A line keeps only what differs from the pin, and the rest follows from it."""

import pytest

from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.rebase.line import all_lines, check_own, derive, find_line
from balance_tools.series.apply import diff_file
from balance_tools.wheel.plan import check_pair
from rebase_samples import (
    ENGINE,
    EXCHANGE,
    SYNC_AND_WAVE,
    UPSTREAM,
    edit,
    make_root,
    make_sdist,
    misplaced,
    patched_engine,
    rebase,
    replaced,
    tracked,
    write_tree,
)

# Upstream rewrote the statement that the exchange stands behind.
BEHIND = b"            self.active = self.sync(self.finish(executed))\n"
NEWER = replaced(ENGINE, (SYNC_AND_WAVE, BEHIND))
OWN = "patches/vllm/exchange.patch"


pytestmark = pytest.mark.usefixtures("types_fit")


@pytest.fixture
def root(tmp_path):
    """A repository with the line `next`, whose exchange.patch a person placed."""
    root = make_root(tmp_path)
    archive = make_sdist(tmp_path, "vllm-2.0", {**UPSTREAM, "vllm/engine.py": NEWER})
    args = ("--sdist", str(archive), "--line", "next")
    if rebase(root, *args):
        placed = patched_engine(
            root / "build/rebase/2.0/patches/vllm", Paths(root).unpacked("vllm", "2.0")
        )
        diff = diff_file(
            "vllm/engine.py", placed, replaced(placed, (BEHIND, BEHIND + EXCHANGE))
        )
        write_tree(root / "lines/next", {OWN: b"Description: x\n\n" + diff})
        assert rebase(root, *args) == 0
    return root


def refusal(root):
    with pytest.raises(ToolError) as caught:
        derive(Paths(root), find_line(Paths(root), "next"))
    return str(caught.value)


def test_it_holds_what_a_person_changed_and_the_rest_is_derived(root, tmp_path):
    (tmp_path / "other").mkdir()
    assert tracked(root) == tracked(make_root(tmp_path / "other"))
    folder = root / "lines" / "next"
    files = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    assert sorted(files) == [OWN, "upstream.toml"]
    series = derive(Paths(root), find_line(Paths(root), "next"))
    names = ["gate.patch", "hold.patch", "exchange.patch"]
    assert (series / "vllm" / "series").read_text().split() == names
    tree = Paths(root).unpacked("vllm", "2.0")
    patched = patched_engine(series / "vllm", tree)
    assert misplaced(patched) == []
    assert BEHIND + EXCHANGE in patched


def test_a_change_of_the_pin_is_derived_too(root):
    change = ("create_gate(config)", "create_gate(config, 1)")
    edit(root / "patches/vllm/gate.patch", *change)
    series = derive(Paths(root), find_line(Paths(root), "next"))
    assert change[1] in (series / "vllm" / "gate.patch").read_text()


def test_a_patch_that_does_not_follow_any_more_is_named(root):
    # Upstream's new release has this statement itself.
    hook = "+            if self.gate.holds(request):\n+                break\n+\n"
    patch = root / "patches/vllm/hold.patch"
    edit(patch, hook, hook.replace("self.gate.holds(request)", "self.finish(request)"))
    said = refusal(root)
    assert "lines/next: hold.patch does not follow from the pin any more" in said
    assert "tools/rebase.sh 2.0 --ascend 1.0 --line next" in said


def test_an_own_patch_must_follow_the_one_of_the_pin(root):
    change = ("gate.exchange(self.active)", "gate.exchange(self.active, 1)")
    edit(root / "patches" / "vllm" / "exchange.patch", *change)
    said = refusal(root)
    assert said.startswith(f"lines/next/{OWN}: expected it to follow {OWN}")
    field = said.partition("write the field ")[2]
    own = root / "lines/next" / OWN
    (before,) = [t for t in own.read_text().splitlines() if t.startswith("Adapted-")]
    edit(own, before, field)
    edit(own, *change)
    series = derive(Paths(root), find_line(Paths(root), "next"))
    assert change[1] in (series / "vllm" / "exchange.patch").read_text()


def test_a_patch_that_the_pin_no_longer_has_is_named(root):
    (own := root / "lines/next" / OWN).rename(own.with_name("other.patch"))
    assert "patches/vllm/series: expected other.patch" in refusal(root)
    with pytest.raises(ToolError, match="expected a line, found none; there are next"):
        find_line(Paths(root), "none")


def test_our_lines_follow_the_pin():
    paths = Paths.find()
    for line in all_lines(paths):
        check_own(paths, line)


def test_our_lines_say_which_plugin_they_have():
    paths = Paths.find()
    locks = {line.name: line.lock for line in all_lines(paths)}
    check_pair(locks["0.30"])
    found = r"vllm-ascend for vllm 0\.33\.0, found 0\.23\.0\.post1; .* reference alone"
    with pytest.raises(ToolError, match=found):
        check_pair(locks["0.33"])
