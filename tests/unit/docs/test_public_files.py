"""What a stranger looks for first is there, and what it says is so."""

from pathlib import Path

import yaml

from balance_tools.paths import Paths
from balance_tools.upstream.lock import load_lock

ROOT = Path(__file__).parents[3]


def test_the_public_workflow_runs_what_ci_runs() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())
    (job,) = workflow["jobs"].values()
    assert job["steps"][-1] == {"run": ".ci/run"}
    assert workflow["permissions"] == {"contents": "read"}


def test_the_supported_releases_are_those_of_the_locks() -> None:
    text = (ROOT / "SUPPORT.md").read_text()
    locks = [Paths.find().lock, *ROOT.glob("lines/*/upstream.toml")]
    for lock in map(load_lock, locks):
        assert (
            f"vllm {lock.vllm.version}, vllm-ascend {lock.vllm_ascend.version}" in text
        )
