"""What a stranger looks for first is there, and what it says is so."""

import shutil
import subprocess
from pathlib import Path

import pytest
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


@pytest.mark.skipif(
    shutil.which("ssh-keygen") is None,
    reason="no ssh-keygen: install Debian's openssh-client",
)
def test_a_signature_is_checked_as_the_page_says(tmp_path: Path) -> None:
    """By the real ssh-keygen, with the commands of the page."""
    page = (ROOT / "docs/maintainers.md").read_text()
    commands = [
        line.removeprefix("$ ")
        for line in page.splitlines()
        if line.startswith("$ ssh-keygen -Y")
    ]
    sign, verify = commands

    def run(command: str) -> int:
        return subprocess.run(command, shell=True, cwd=tmp_path).returncode

    assert run("ssh-keygen -q -t ed25519 -N '' -f release-key") == 0
    key = (tmp_path / "release-key.pub").read_text()
    (tmp_path / "allowed_signers").write_text(f"releases {key}")
    (tmp_path / "SHA256SUMS").write_text("0 file\n")
    assert run(sign) == 0
    assert run(verify) == 0
    (tmp_path / "SHA256SUMS").write_text("1 file\n")
    assert run(verify) != 0
