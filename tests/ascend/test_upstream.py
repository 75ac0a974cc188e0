"""vllm-ascend's own unit tests: what passes without our patches passes with them."""

import hashlib
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path
from xml.etree import ElementTree

import pytest
from packaging.version import Version

from balance_tools.files import write_atomically
from balance_tools.paths import Paths
from conftest import HERE, PROGRAM_S, ROOT

ENVIRONMENT = Path(sys.prefix)
UNPATCHED = ENVIRONMENT.with_name("unpatched")
BESIDE = ("tests", "tools", "docs")
"""What the tests read, besides the package that they import."""
FOR_OTHER_MACHINES = ("a2", "a2_2", "a3_2", "a3_4", "310p")
"""Folders of tests that upstream runs on NPUs (its tests/ut/conftest.py)."""
PYTEST = "import sys; sys.path.remove(''); import pytest; sys.exit(pytest.main())"
"""As `python -P -m pytest`: without the current folder. -P is new in Python 3.11."""
AT_LEAST = {(3, 10): 1200, (3, 11): 1700}
"""Of 1745. In 3.10, `mock.patch` does not import the modules on the way to its target,
and upstream's tests rely on that."""
KEPT = ENVIRONMENT.with_name("upstreams-tests.json")
"""What the tests say without our patches, and from what that was made."""


@pytest.fixture(scope="module")
def before(tmp_path_factory) -> dict[str, str]:
    """The outcomes without our patches; kept while all that they depend on is equal."""
    made_from = without_patches_made_from()
    kept = json.loads(KEPT.read_text()) if KEPT.is_file() else {}
    if kept.get("made_from") != made_from:
        found = outcomes(tmp_path_factory.mktemp("before") / "tests", UNPATCHED)
        kept = {"made_from": made_from, "outcomes": found}
        write_atomically(KEPT, json.dumps(kept, indent=1))
    return kept["outcomes"]


def without_patches_made_from() -> str:
    """A hash of upstream's sources, of every other package, and of how tests are run.

    The wheel is not among them: that environment has its name and version, and no
    code of ours.
    """
    files = [ENVIRONMENT.with_name("base.stamp"), ENVIRONMENT.with_name("native.stamp")]
    files += [ROOT / "upstream.toml", HERE / "unpatched.py", Path(__file__)]
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in files]
    return hashlib.sha256("".join(digests).encode()).hexdigest()


@pytest.mark.timeout(2 * PROGRAM_S)
def test_nothing_newly_fails(tmp_path, before):
    after = outcomes(tmp_path / "tests", ENVIRONMENT)
    passed = {name for name, outcome in before.items() if outcome == "passed"}
    newly = sorted(name for name in passed if after.get(name) != "passed")
    print(f"{len(passed)} of {len(before)} pass unpatched")
    assert len(passed) > AT_LEAST[sys.version_info[:2]]
    assert not newly, "\n".join(newly)


def outcomes(folder: Path, environment: Path) -> dict[str, str]:
    """Run upstream's tests on an installed plugin: the outcome of each.

    As upstream's machines without an NPU run them: its conftest puts mocks in the
    places of torch_npu and CANN, so the emulated device is left out.
    """
    release = Version(version("vllm-ascend")).public
    sources = Paths(ROOT).unpacked("vllm-ascend", release)
    folder.mkdir()
    for name in BESIDE:
        (folder / name).symlink_to(sources / name)
    (plugin,) = environment.glob("lib/python*/site-packages/vllm_ascend")
    (folder / "vllm_ascend").symlink_to(plugin)
    report = folder / "report.xml"
    command = [str(environment / "bin/python"), "-c", PYTEST, "tests/ut", "-q"]
    command += ["-p", "no:cacheprovider", "--timeout", "600", "--tb", "line"]
    command += ["--continue-on-collection-errors", f"--junitxml={report}"]
    command += [f"--ignore-glob=*/{name}/*" for name in FOR_OTHER_MACHINES]
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    variables |= {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "TRANSFORMERS_OFFLINE": "1"}
    result = subprocess.run(
        command,
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=PROGRAM_S,
    )
    assert report.is_file(), result.stdout[-3000:] + result.stderr[-3000:]
    return dict(map(outcome_of, ElementTree.parse(report).iter("testcase")))


def outcome_of(case: ElementTree.Element) -> tuple[str, str]:
    """The name of a test, and how it ended."""
    name = f"{case.get('classname')}::{case.get('name')}"
    ends = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
    return name, ends[0] if ends else "passed"
