"""What the operators' pages say of versions is what the lock and upstream say."""

import re
from pathlib import Path

import pytest
import yaml

from balance_tools.distribution import SETTINGS_NAME, load_settings
from balance_tools.paths import Paths
from balance_tools.upstream.lock import load_lock

PATHS = Paths.find()
LOCK = load_lock(PATHS.lock)
DOCS = PATHS.root / "docs"
INSTALL = (DOCS / "install.md").read_text(encoding="utf-8")
POLICY = "versioning_policy.md"
ROWS = [
    [cell.strip() for cell in row.strip("|").split("|")]
    for row in INSTALL.splitlines()
    if row.startswith("| ") and "vllm-ascend `" in row
]


def test_pages_name_the_present_version():
    settings = load_settings(PATHS.root / SETTINGS_NAME)
    present = settings.version(LOCK.vllm.version)
    # How versions are counted is explained with others.
    pages = {PATHS.root / "README.md", *DOCS.glob("*.md")} - {DOCS / "maintainers.md"}
    named = {
        (page.name, version)
        for page in pages
        for version in re.findall(r"\d[\d.]*\+balance\.\d+", page.read_text("utf-8"))
    }
    assert {page for page, _ in named} >= {"README.md", "install.md"}
    assert {version for _, version in named} == {present}, named


def test_the_releases_of_upstream_are_those_of_the_locks():
    words = "vllm {0.vllm.version}{1} vllm-ascend {0.vllm_ascend.version}".format
    assert words(LOCK, " and") in " ".join(INSTALL.split())
    supported = (PATHS.root / "SUPPORT.md").read_text()
    for lock in (PATHS.lock, *PATHS.root.glob("lines/*/upstream.toml")):
        assert words(load_lock(lock), ",") in supported


def test_the_public_workflow_runs_what_a_newcomer_and_ci_run():
    path = PATHS.root / ".github/workflows/ci.yml"
    workflow = yaml.safe_load(path.read_text())
    newcomer, everything = workflow["jobs"].values()
    assert newcomer["steps"][-2:] == [{"run": "make demo"}, {"run": "make test"}]
    assert everything["steps"][-1] == {"run": ".ci/run"}
    assert workflow["permissions"] == {"contents": "read"}


def said_by_upstream(name):
    """The text of a file of the plugin's sdist; of a table of releases, our line."""
    folder = PATHS.pristine / f"vllm-ascend-{LOCK.vllm_ascend.version}"
    text = Path(folder, name).read_text(encoding="utf-8")
    if name.endswith(POLICY):
        start = f"| v{LOCK.vllm_ascend.version} "
        (text,) = [line for line in text.splitlines() if line.startswith(start)]
    return text


@pytest.mark.parametrize(("what", "version", "says"), ROWS, ids=[r[0] for r in ROWS])
def test_the_file_of_upstream_says_so(what, version, says):
    quoted = re.findall(r"`([^`]+)`", says)
    files = [name for name in quoted if name.endswith((".md", ".txt"))]
    wanted = [text for text in quoted if text not in files] or [version]
    for name in files:
        text = said_by_upstream(name)
        assert all(re.search(rf"{re.escape(w)}(?![\d.])", text) for w in wanted), name


def test_every_soc_is_one_of_the_plugins_build():
    setup = said_by_upstream("setup.py")
    named = re.findall(r"`(ascend\d\w+[-\w]*)", INSTALL)
    assert len(named) > 4
    assert [name for name in named if f'"{name}"' not in setup] == []


def test_every_metric_is_one_that_the_server_has():
    sources = ["vllm/v1/metrics/loggers.py", "vllm/v1/core/sched/balance/metrics.py"]
    defined = "".join((PATHS.root / name).read_text("utf-8") for name in sources)
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    named = {name.removesuffix("_total") for name in re.findall(r"`(vllm:\w+)`", page)}
    assert len(named) > 8
    assert {name for name in named if f'"{name}"' not in defined} == set()
