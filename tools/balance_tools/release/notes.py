"""Release notes: the section of CHANGELOG.md that belongs to one version."""

from __future__ import annotations

import re

from balance_tools.errors import ToolError
from balance_tools.upstream.lock import Lock

CHANGELOG = "CHANGELOG.md"
_HEADING = re.compile(r"^## (.+)$", re.MULTILINE)
_RELEASED = re.compile(r"(\S+) \((\d{4}-\d{2}-\d{2})\)")
_UNRELEASED = re.compile(r"Unreleased(?: \((\S+)\))?")


def release_notes(changelog: str, version: str, lock: Lock, *, trial: bool) -> str:
    """The text of the notes.

    A trial may take the section that says Unreleased.

    Raises:
        ToolError: there is no section of this version, or it is empty.
    """
    heading, body = _section(changelog, version, trial=trial)
    if not body:
        raise ToolError(
            f"{CHANGELOG}: expected lines below '## {heading}', found none; write what "
            "changes for those who install it"
        )
    return (
        f"# vllm-balance {heading}\n\n"
        f"Made from vllm {lock.vllm.version} and vllm-ascend "
        f"{lock.vllm_ascend.version}.\n\n{body}\n"
    )


def _section(changelog: str, version: str, *, trial: bool) -> tuple[str, str]:
    """Heading and body."""
    parts = _HEADING.split(changelog)[1:]
    sections = dict(zip(parts[::2], map(str.strip, parts[1::2]), strict=True))
    unreleased = None
    for heading, body in sections.items():
        released = _RELEASED.fullmatch(heading)
        if released and released[1] == version:
            return heading, body
        waiting = _UNRELEASED.fullmatch(heading)
        if waiting and waiting[1] in (None, version):
            unreleased = heading
    if unreleased is not None and trial:
        return f"{version} (trial)", sections[unreleased]
    found = f"'## {unreleased}'" if unreleased else "none"
    raise ToolError(
        f"{CHANGELOG}: expected a section '## {version} (YYYY-MM-DD)', found {found}; "
        "write it, as docs/maintainers.md says, or make a trial with --trial"
    )
