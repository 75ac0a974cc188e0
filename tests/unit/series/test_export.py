"""The canonical writer equals real quilt, byte for byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from balance_tools.series.apply import load_series
from balance_tools.series.export import CONTEXT_LINES, export_series
from series_samples import contents, make_patch, pristine, quilt, sample


def bodies(patches: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in patches.glob("*.patch")}


def test_apply_then_export_is_byte_identical(tmp_path: Path) -> None:
    patches, tree = sample(tmp_path)
    assert export_series(load_series(patches), tree) == bodies(patches)


def test_quilt_refresh_changes_nothing(tmp_path: Path) -> None:
    patches, tree = sample(tmp_path)
    before = bodies(patches)
    for _ in before:
        assert "offset" not in quilt(patches, tree, "push").stdout
        assert "unchanged" in quilt(patches, tree, "refresh").stdout
    assert bodies(patches) == before


@pytest.mark.parametrize("seed", range(8))
def test_repeated_lines_are_cut_as_quilt_cuts_them(tmp_path: Path, seed: int) -> None:
    """Equal lines around an insertion leave several valid diffs; quilt's counts."""
    chance = random.Random(seed)
    old = [chance.choice(["pass", "}", "", "if x:"]) for _ in range(40)]
    new = list(old)
    for _ in range(6):
        at = chance.randrange(len(new))
        new[at:at] = new[at : at + chance.randrange(1, 4)]
    tree, patches = tmp_path / "tree", tmp_path / "patches"
    tree.mkdir()
    (tree / "f.py").write_text("\n".join(old) + "\n")
    make_patch(patches, tree, "p.patch", {"f.py": ("\n".join(new) + "\n").encode()})
    pristine(tree, patches)
    assert export_series(load_series(patches), tree) == bodies(patches)


def test_files_are_sorted_and_the_tree_is_left_alone(tmp_path: Path) -> None:
    tree, patches = tmp_path / "tree", tmp_path / "patches"
    tree.mkdir()
    names = ["b.py", "B.py", "a_b.py", "a/c.py"]
    make_patch(patches, tree, "p.patch", dict.fromkeys(names, b"x\n"))
    pristine(tree, patches)
    before = contents(tree)
    (exported,) = export_series(load_series(patches), tree).values()
    written = [
        line[6:] for line in exported.decode().splitlines() if line[:4] == "+++ "
    ]
    assert written == sorted(names)
    assert contents(tree) == before


def test_quilts_settings_have_the_same_context() -> None:
    settings = (Path(__file__).parents[3] / "tools" / "quiltrc").read_text()
    assert f"-U {CONTEXT_LINES} " in settings
