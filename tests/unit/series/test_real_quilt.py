"""Real quilt takes the project's series on the pristine trees, with no fuzz."""

import shutil

import pytest

from balance_tools.paths import Paths
from balance_tools.series.apply import load_series
from balance_tools.series.lint import LIMITS
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine
from series_samples import apply_series, contents, quilt


@pytest.fixture(params=sorted(LIMITS))
def made(request, tmp_path):
    """(series, copy of the patches, copy of the pristine files that they touch)."""
    name: str = request.param
    paths = Paths.find()
    pristine = ensure_pristine(load_lock(paths.lock).packages[name], paths)
    series = load_series(paths.patches(name))
    assert series.patches
    patches, tree = tmp_path / "patches", tmp_path / "tree"
    shutil.copytree(series.directory, patches)
    for path in series.paths:
        (tree / path).parent.mkdir(parents=True, exist_ok=True)
        if (pristine / path).exists():
            shutil.copy(pristine / path, tree / path)
    return series, patches, tree


def test_push_is_exact_refresh_changes_nothing_pop_restores(made):
    series, patches, tree = made
    pristine = contents(tree)
    for patch in series.patches:
        said = quilt(patches, tree, "push", "--fuzz=0").stdout
        assert "fuzz" not in said
        assert "offset" not in said
        assert "is unchanged" in quilt(patches, tree, "refresh").stdout
        assert (patches / patch.name).read_bytes() == patch.raw
    pushed = {path: (tree / path).read_bytes() for path in series.paths}
    quilt(patches, tree, "pop", "-a")
    shutil.rmtree(tree / ".pc")
    assert contents(tree) == pristine
    apply_series(series, tree)
    assert {path: (tree / path).read_bytes() for path in series.paths} == pushed
