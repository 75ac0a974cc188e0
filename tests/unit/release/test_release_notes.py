"""Release notes come from the changelog, and only from a section of that version."""

from __future__ import annotations

import pytest

from balance_tools.distribution import SETTINGS_NAME, load_settings
from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.release.notes import release_notes
from balance_tools.upstream.lock import load_lock

LOCK = load_lock(Paths.find().lock)
WAITING = "# Changelog\n\n## Unreleased (1.0+balance.2)\n\n- new\n"
RELEASED = """
## 1.0+balance.1 (2026-01-31)

### Added
- old

## 0.9+balance.1 (2025-01-01)

- older
"""


def notes(changelog: str, version: str, trial: bool = False) -> str:
    return release_notes(changelog, version, LOCK, trial=trial)


def test_the_section_of_the_version_and_nothing_else() -> None:
    text = notes(WAITING + RELEASED, "1.0+balance.1")
    assert text.startswith("# vllm-balance 1.0+balance.1 (2026-01-31)\n")
    assert f"vllm {LOCK.vllm.version} and vllm-ascend" in text
    assert text.endswith("### Added\n- old\n")


def test_a_section_that_waits_is_for_trials() -> None:
    with pytest.raises(ToolError, match=r"found '## Unreleased \(1\.0\+balance\.2\)'"):
        notes(WAITING + RELEASED, "1.0+balance.2")
    text = notes(WAITING + RELEASED, "1.0+balance.2", trial=True)
    assert text.startswith("# vllm-balance 1.0+balance.2 (trial)\n")
    assert text.endswith("- new\n")


@pytest.mark.parametrize("trial", [False, True])
def test_a_version_without_a_section_is_refused(trial: bool) -> None:
    with pytest.raises(ToolError, match=r"expected a section '## 1\.0\+balance\.3 "):
        notes(WAITING + RELEASED, "1.0+balance.3", trial)


def test_an_empty_section_is_refused() -> None:
    changelog = "## 1.0+balance.1 (2026-01-31)\n\n## 0.9+balance.1 (2025-01-01)\n- x\n"
    with pytest.raises(ToolError, match="expected lines below"):
        notes(changelog, "1.0+balance.1")


def test_a_heading_without_a_date_is_no_release() -> None:
    with pytest.raises(ToolError, match="found none"):
        notes("## 1.0+balance.1\n\n- x\n", "1.0+balance.1")


def test_the_changelog_has_a_section_for_the_present_version() -> None:
    paths = Paths.find()
    changelog = (paths.root / "CHANGELOG.md").read_text()
    settings = load_settings(paths.root / SETTINGS_NAME)
    assert notes(changelog, settings.version(LOCK.vllm.version), trial=True)
