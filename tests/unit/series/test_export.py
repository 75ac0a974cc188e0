"""The canonical writer equals real quilt, byte for byte."""

import random

import pytest

from balance_tools.series.apply import export_series, load_series
from series_samples import make_patch, pristine


@pytest.mark.parametrize("seed", range(3))
def test_repeated_lines_are_cut_as_quilt_cuts_them(tmp_path, seed):
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
    written = {path.name: path.read_bytes() for path in patches.glob("*.patch")}
    assert export_series(load_series(patches), tree) == written
