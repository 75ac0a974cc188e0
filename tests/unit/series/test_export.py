"""The canonical writer equals real quilt, byte for byte."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from balance_tools.series.apply import export_series, load_series
from series_samples import contents, make_patch, pristine


def bodies(patches: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in patches.glob("*.patch")}


@pytest.mark.parametrize("seed", range(3))
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
    names = ["b.py", "B.py", "a_b.py", "a/c.py"]
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_bytes(b"x\n")
    before = contents(tree)
    make_patch(patches, tree, "p.patch", dict.fromkeys(names, b"x\ny\n"))
    pristine(tree, patches)
    (exported,) = export_series(load_series(patches), tree).values()
    lines = exported.decode().splitlines()
    assert [text[6:] for text in lines if text[:4] == "+++ "] == sorted(names)
    assert contents(tree) == before
