"""The table of versions is what the locked sources say, and what the page shows."""

from __future__ import annotations

import re

import pytest
import tomlkit

from balance_tools.paths import Paths
from balance_tools.upstream.lock import load_lock
from vllm_balance.doctor.versions import LINES, POLICY, order

PATHS = Paths.find()
LOCK = load_lock(PATHS.lock)
PINNED = LINES[".".join(LOCK.vllm.version.split(".")[:2])]
VERSIONS = [
    "24.1.rc3",
    "24.1.0.3",
    "25.2.0",
    "25.5.1",
    "26.0.RC1",
    "26.0.rc2",
    "26.0.0",
]


def rows() -> list[str]:
    """The table of docs/install.md."""
    found = [f"| | {' | '.join(LINES)} | says |", "|---|---|---|---|---|"]
    for name in PINNED:
        facts = [stack[name] for stack in LINES.values()]
        says = dict.fromkeys(fact.says for fact in facts if fact.version)
        quoted = [text if "`" in text else f"`{text}`" for text in says]
        cells = [fact.version or "–" for fact in facts]
        found.append(f"| {name} | {' | '.join(cells)} | {', '.join(quoted)} |")
    return found


def test_the_page_shows_the_table() -> None:
    page = (PATHS.root / "docs/install.md").read_text(encoding="utf-8")
    assert "\n".join(rows()) in page


def test_every_supported_line_has_a_table() -> None:
    locked = {}
    for lock in PATHS.root.glob("lines/*/upstream.toml"):
        locked[lock.parent.name] = tomlkit.parse(lock.read_text()).unwrap()
    assert {*locked} | {".".join(LOCK.vllm.version.split(".")[:2])} == {*LINES}
    for name, lock in locked.items():
        published = lock["vllm_ascend"]["version"].startswith(name)
        assert bool(LINES[name]["CANN"].version) == published, name


@pytest.mark.parametrize("name", PINNED)
def test_the_pinned_sources_say_so(name: str) -> None:
    fact = PINNED[name]
    folder = PATHS.pristine / f"vllm-ascend-{LOCK.vllm_ascend.version}"
    text = (folder / fact.says).read_text(encoding="utf-8")
    if fact.says == POLICY:
        start = f"| v{LOCK.vllm_ascend.version} "
        (text,) = [line for line in text.splitlines() if line.startswith(start)]
    wanted = fact.version.split(", ") if name == "chips" else [fact.version]
    before = r"HDK " if name == "Ascend HDK" else ""
    for version in wanted:
        assert re.search(rf"{before}{re.escape(version)}(?![\d.]\d)", text), version


def test_versions_of_the_vendor_are_in_order() -> None:
    assert sorted(VERSIONS, key=order) == VERSIONS
    assert order("26.0.RC1") == order("26.0.rc1")
