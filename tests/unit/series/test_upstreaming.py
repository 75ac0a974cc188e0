"""The patch for upstream applies to a release."""

import re
import shutil
from pathlib import Path

import pytest

from balance_tools.run import git

ROOT = Path(__file__).parents[3]
PATCH = ROOT / "docs" / "upstreaming" / "extensible-scheduler.patch"
PRISTINE = ROOT / "build" / "pristine" / "vllm-0.33.0"


@pytest.mark.skipif(
    not PRISTINE.exists(), reason="no vLLM 0.33.0: run `tools/rebase.sh line 0.33`"
)
def test_it_applies_to_the_release(tmp_path):
    for file in re.findall(r"^--- a/(.*)$", PATCH.read_text(), re.MULTILINE):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(PRISTINE / file, tmp_path / file)
    done = git(tmp_path, "apply", str(PATCH))
    assert done.status == 0, done.tail
    for path in tmp_path.rglob("*.py"):
        compile(path.read_text(), path, "exec")
