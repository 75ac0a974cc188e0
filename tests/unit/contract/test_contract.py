"""A target in which something that we use is gone is refused, by its name."""

import shutil
from dataclasses import replace

import pytest

from balance_tools.contract.fit import findings, read_pin, status_of
from balance_tools.hooks.model import PatchStatus
from balance_tools.paths import Paths
from balance_tools.series.apply import load_series
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine
from rebase_samples import edit

PATHS = Paths.find()
SERIES = load_series(PATHS.patches("vllm"))


@pytest.fixture
def tree(tmp_path):
    pristine = ensure_pristine(load_lock(PATHS.lock).vllm, PATHS)
    tree, left_out = tmp_path / "upstream", shutil.ignore_patterns("*.json", "*.so")
    shutil.copytree(pristine / "vllm", tree / "vllm", ignore=left_out)
    return tree


def test_what_the_release_lacks_is_refused_by_name(tree, tmp_path):
    """A module, functions and a relied-on name that are gone, a changed signature.

    What only patches call that are left out need not be there.
    """
    pin, gone = read_pin(PATHS), "uses_xdrope_dim"
    edit(tree / "vllm/config/model.py", f"def {gone}", "def xdrope_dim")
    killing, metric = "kill_process_tree(pid: int", "create_metric_per_engine"
    edit(tree / "vllm/utils/system_utils.py", killing, f"{killing}, why: str")
    edit(tree / "vllm/v1/metrics/utils.py", metric, "create_metrics")
    (tree / "vllm/v1/worker/cpu_worker.py").unlink()
    relied_on = "def get_scheduler_cls"
    edit(tree / "vllm/config/scheduler.py", relied_on, "def scheduler_cls")
    found = findings(pin, SERIES, tree, tmp_path / "root")
    said = [str(finding) for finding in found]
    assert "Relies-On" in said[0]
    assert "get_scheduler_cls is gone" in said[0]
    assert status_of(found) is PatchStatus.VANISHED
    for name in ("kill_process_tree", "create_metric_per", "cpu_worker", gone):
        assert any(name in one for one in said[1:]), said
    assert len(found) < 12, said
    kept = [each for each in SERIES.patches if not each.name.startswith("security-")]
    series = replace(SERIES, patches=tuple(kept))
    said = [str(one) for one in findings(pin, series, tree, tmp_path / "root")]
    assert any("kill_process_tree" in one for one in said), said
    assert not any(gone in one for one in said), said
