"""The patch for upstream applies, and the plug-in on its page fits it."""

import re
import shutil
from pathlib import Path

import pytest

from balance_tools.run import git

ROOT = Path(__file__).parents[3]
PATCH = ROOT / "docs" / "upstreaming" / "extensible-scheduler.patch"
PRISTINE = ROOT / "build" / "pristine" / "vllm-0.33.0"


def git_apply(*options, cwd=ROOT):
    """Its output; the patch is well formed and applies."""
    done = git(cwd, "apply", *options, str(PATCH))
    assert done.status == 0, done.tail
    return done.text


def test_it_adds_few_lines_to_few_files_and_removes_none():
    rows = [line.split("\t") for line in git_apply("--numstat").splitlines()]
    added = {file: int(number) for number, _, file in rows}
    assert {removed for _, removed, _ in rows} == {"0"}
    del added["vllm/v1/core/sched/plugin.py"]
    page = (ROOT / "docs" / "upstreaming.md").read_text()
    assert len(added) == 5
    assert f"{sum(added.values())} lines in five files" in page


@pytest.mark.skipif(
    not PRISTINE.exists(), reason="no vLLM 0.33.0: run `tools/rebase.sh line 0.33`"
)
def test_it_applies_to_the_release(tmp_path):
    for file in re.findall(r"^--- a/(.*)$", PATCH.read_text(), re.MULTILINE):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PRISTINE / file, tmp_path / file)
    git_apply(cwd=tmp_path)
    for path in tmp_path.rglob("*.py"):
        compile(path.read_text(), path, "exec")
