"""The versions of the page, and of the doctor, are those of the locked sources."""

import re

import pytest

from balance_tools.paths import Paths
from balance_tools.upstream.lock import load_lock
from vllm_balance.doctor.versions import RELEASES, order

PATHS = Paths.find()
LOCK = load_lock(PATHS.lock)
PINNED = ".".join(LOCK.vllm.version.split(".")[:2])
PAGE = (PATHS.root / "docs/compatibility.md").read_text(encoding="utf-8")
PAGE = PAGE.partition("## Versions by line")[2].partition("\n## ")[0]
ROWS = [re.split(r" *\| *", line)[1:-1] for line in re.findall(r"^\|.*", PAGE, re.M)]
TABLE = {what: dict(zip(ROWS[0][1:], cells, strict=True)) for what, *cells in ROWS[2:]}
"""What it is of, to the version by line."""
POLICY = "docs/source/community/versioning_policy.md"
SAYS = {
    "Ascend HDK": "docs/source/user_guide/release_notes.md",
    "CANN": POLICY,
    "NNAL": "docs/source/installation.md",
    "torch": "requirements.txt",
    "torch-npu": "requirements.txt",
    "triton-ascend": "requirements.txt",
    "Python": POLICY,
    "chips": "setup.py",
    "image base": "Dockerfile",
}
"""The file of vllm-ascend's sdist that says it; of 0.33 vllm's pyproject.toml."""
ORDERED = ["24.1.rc3", "24.1.0.3", "25.2.0", "25.5.1", "26.0.RC1", "26.0.rc2", "26.0.0"]


@pytest.mark.parametrize("what", TABLE)
def test_the_pinned_sources_say_so(what):
    version = TABLE[what][PINNED]
    assert RELEASES[PINNED].get(what, version) == version
    says = SAYS[what]
    folder = PATHS.pristine / f"vllm-ascend-{LOCK.vllm_ascend.version}"
    text = (folder / says).read_text(encoding="utf-8")
    if says == POLICY:
        start = f"| v{LOCK.vllm_ascend.version} "
        (text,) = [line for line in text.splitlines() if line.startswith(start)]
    before = r"HDK " if what == "Ascend HDK" else ""
    for each in version.split(", ") if what == "chips" else [version]:
        assert re.search(rf"{before}{re.escape(each)}(?![\d.]\d)", text), each


def test_versions_of_the_vendor_are_in_order():
    assert sorted(ORDERED, key=order) == ORDERED
    assert order("26.0.RC1") == order("26.0.rc1")
