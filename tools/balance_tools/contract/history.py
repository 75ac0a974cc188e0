"""Which commit of upstream did it, from a local clone of its repository."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from balance_tools.contract.check import Finding
from balance_tools.errors import ToolError
from balance_tools.run import capture


def with_commits(
    found: Sequence[Finding], clone: Path, old: str, new: str
) -> tuple[Finding, ...]:
    """Return findings with the commits that took their names away.

    Args:
        found: Of a comparison of two releases.
        clone: A clone of upstream with the tags of both, v0.23.0 and so on.
        old: The release that has the names.
        new: The one that has not.

    Raises:
        ToolError: it is no clone, or lacks a tag.
    """
    _check_tags(clone, old, new)
    return tuple(_with_commit(finding, clone, old, new) for finding in found)


def first_without(
    clone: Path, old: str, new: str, path: str, fits: Callable[[bytes], bool]
) -> str:
    """Return the commit after which a file does not do any more.

    It is searched by halves: of several, one is found.

    Args:
        clone: A clone of upstream with the tags of both releases.
        old: The release whose file does.
        new: The one whose file does not, or is gone.
        path: Of the file.
        fits: Whether a content does.

    Returns:
        Its short hash and title; "" if the file of `old` does not do either, or that of
        `new` still does.

    Raises:
        ToolError: it is no clone, or lacks a tag.
    """
    _check_tags(clone, old, new)

    def does(commit: str) -> bool:
        found = capture(["git", "-C", clone, "cat-file", "blob", f"{commit}:{path}"])
        return found.status == 0 and fits(found.output)

    first, last = f"v{old}", f"v{new}"
    words = ("rev-list", "--reverse", "--first-parent", f"{first}..{last}")
    commits = [first, *_git(clone, *words, "--", path).split()]
    if not does(first) or does(last) or len(commits) == 1:
        return ""
    good, bad = 0, len(commits) - 1
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if does(commits[middle]) else (good, middle)
    return _git(clone, "log", "-1", "--format=%h %s", commits[bad])


def _check_tags(clone: Path, *versions: str) -> None:
    for version in versions:
        tag = f"v{version}^{{commit}}"
        if not _git(clone, "rev-parse", "--verify", "--quiet", tag):
            raise ToolError(
                f"--upstream-git {clone}: expected a clone of upstream with the tag "
                f"v{version}, found none; fetch its tags or leave the option out"
            )


def _with_commit(finding: Finding, clone: Path, old: str, new: str) -> Finding:
    symbol = finding.name.split(" ")[0].replace(":", ".")
    parts = symbol.split(".")
    path = _file(clone, old, parts)
    between = f"v{old}..v{new}"
    # The last commit that changed how often it occurs; now it occurs no more.
    said = _git(
        clone, "log", "-1", "--format=%h %s", f"-S{parts[-1]}", between, "--", path
    )
    if not said:
        return finding
    did = f"{finding.upstream}; by {said}" if finding.upstream else f"by {said}"
    return replace(finding, upstream=did)


def _file(clone: Path, version: str, parts: Sequence[str]) -> str:
    """Return the file of a dotted name at a release, the package if there is none."""
    for length in range(len(parts), 0, -1):
        base = "/".join(parts[:length])
        for path in (f"{base}.py", f"{base}/__init__.py"):
            if _git(clone, "ls-tree", "--name-only", f"v{version}", path):
                return path
    return "vllm"


def _git(clone: Path, *arguments: str) -> str:
    return capture(["git", "-C", clone, *arguments]).text.strip()
