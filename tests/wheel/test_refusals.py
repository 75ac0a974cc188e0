"""What must not be built is refused in one sentence."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from balance_tools.distribution import Choice
from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.wheel.plan import make_plan
from conftest import HERE, ROOT, Build
from test_reproducible import copy_sources


@pytest.fixture
def copy(build: Build, tmp_path: Path) -> Path:
    """A copy of the sources that could be built."""
    build(Choice())
    return copy_sources(tmp_path / "copy", linked=("vllm", "vllm_ascend"))


def refusal(root: Path) -> str:
    with pytest.raises(ToolError) as caught:
        make_plan(Paths(root), Choice())
    return str(caught.value)


def test_sources_that_are_not_whole_are_refused(copy):
    notice, series = copy / "NOTICE", copy / "patches" / "vllm" / "series"
    notice.rename(copy / "other")
    assert "NOTICE: expected a licence file" in refusal(copy)
    (copy / "other").rename(notice)
    patch = series.with_name(series.read_text().split()[-1])
    patch.write_text((text := patch.read_text()) + "\n")
    assert "found none or those of another; run `make vendor`" in refusal(copy)
    patch.write_text(text)
    (copy / "vllm").unlink()
    assert "make vendor" in refusal(copy)
    shutil.copytree(ROOT / "vllm", copy / "vllm")
    with (copy / "vllm" / "envs.py").open("a") as file:
        file.write("# edited\n")
    assert "vllm/envs.py: expected what `make vendor` wrote" in refusal(copy)


def test_without_kernels_a_build_says_so_and_leaves_no_wheel(copy):
    (copy / "build" / "kernels").unlink(missing_ok=True)
    result = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", str(copy)],
        env=os.environ | HERE.environment(),
        capture_output=True,
        text=True,
    )
    assert result.returncode != 0
    assert not list(copy.glob("dist/*"))
    lines = (result.stdout + result.stderr).splitlines()
    (line,) = [line for line in lines if line.startswith("error: ")]
    assert "expected the kernels of" in line
