"""The command `release`: build into a hidden folder, verify there, then name it."""

from __future__ import annotations

import argparse
import re
import sys
from dataclasses import dataclass
from pathlib import Path

from balance_tools.distribution import SETTINGS_NAME, load_settings
from balance_tools.errors import ToolError
from balance_tools.files import disk_errors, exclusive, remove_tree, sha256_of
from balance_tools.paths import Paths
from balance_tools.progress import progress
from balance_tools.run import capture, git, to_terminal
from balance_tools.upstream.lock import load_lock
from balance_tools.wheel.build import ALL, build_wheels
from balance_tools.wheel.source_state import source_state

SUMS = "SHA256SUMS"
CHANGELOG = "CHANGELOG.md"
INSPECTIONS = ("test_contents.py", "test_requirements.py")
"""Of tests/wheel: what can be said of a wheel without the machine it is for."""


@dataclass(frozen=True)
class Release:
    """What is released, before it is built."""

    paths: Paths
    version: str
    """`0.23.0+balance.1`"""
    trial: bool

    @property
    def folder(self) -> Path:
        """Where it will lie."""
        return self.paths.dist / f"release-{self.version}{'-trial' * self.trial}"


def plan_release(paths: Paths, *, trial: bool) -> Release:
    """Check all that can be checked before the long part."""
    lock = load_lock(paths.lock)
    settings = load_settings(paths.root / SETTINGS_NAME)
    version = settings.version(lock.vllm.version)
    changelog = (paths.root / CHANGELOG).read_text(encoding="utf-8")
    heading = rf"^## {re.escape(version)} \(\d{{4}}-\d\d-\d\d\)$"
    if not re.search(heading, changelog, re.MULTILINE) and not trial:
        raise ToolError(
            f"{CHANGELOG}: expected a section '## {version} (YYYY-MM-DD)', found none; "
            "write it, as docs/maintainers.md says, or make a trial with --trial"
        )
    state = source_state(paths.root)
    if state.commit is None:
        raise ToolError(
            f"{paths.root}: expected a git checkout with a commit, for a release is "
            "made from one, found none; clone the repository"
        )
    if state.dirty and not trial:
        raise ToolError(
            f"{paths.root}: expected no changes against commit {state.commit[:12]}, "
            "found some (git status); commit them, or make a trial with --trial"
        )
    tag = f"refs/tags/v{version}^{{commit}}"
    found = capture(git(paths.root, "rev-parse", "--quiet", "--verify", tag))
    tagged = found.text.strip() or None
    if tagged not in (None, state.commit) and not trial:
        raise ToolError(
            f"{SETTINGS_NAME}: expected a version without a tag, found v{version} on "
            f"commit {tagged}; raise the revision, as docs/maintainers.md says"
        )
    return Release(paths, version, trial)


def make_release(release: Release, *, verify: bool = True) -> Path:
    """Build, verify and name the release; returns its folder.

    A failure leaves no folder. One that is there already must hold the same bytes.
    """
    hidden = release.folder.with_name(f".{release.folder.name}.part")
    with exclusive(release.paths.build / ".release.lock"), disk_errors(hidden):
        remove_tree(hidden)
        hidden.mkdir(parents=True)
        try:
            build_wheels(release.paths, ALL, hidden)
            complete(hidden)
            if verify:
                inspect_wheels(release.paths, hidden)
            _put_in_place(release, hidden)
        finally:
            remove_tree(hidden)
    return release.folder


def complete(folder: Path) -> None:
    """Add the sums."""
    files = sorted(path for path in folder.iterdir() if path.is_file())
    sums = "".join(f"{sha256_of(path)}  {path.name}\n" for path in files)
    (folder / SUMS).write_text(sums, encoding="utf-8")
    for path in folder.iterdir():
        path.chmod(0o644)


def inspect_wheels(paths: Paths, folder: Path) -> None:
    """Run the tests that need only the wheels; all must pass."""
    tests = [str(paths.root / "tests" / "wheel" / name) for name in INSPECTIONS]
    command = [sys.executable, "-m", "pytest", "--quiet", f"--release={folder}"]
    with progress("inspecting the wheels", 1, "pass"):
        status = to_terminal([*command, *tests], cwd=paths.root)
    if status != 0:
        raise ToolError(
            f"{folder.name}: expected wheels that pass {', '.join(INSPECTIONS)}, found "
            "failures, above; correct what they name and run this again"
        )


def _put_in_place(release: Release, hidden: Path) -> None:
    folder = release.folder
    if folder.is_dir() and not release.trial:
        old, new = (path / SUMS for path in (folder, hidden))
        if not old.is_file() or old.read_bytes() != new.read_bytes():
            raise ToolError(
                f"{folder}: expected no release here, or the same bytes, found others; "
                f"raise the revision in {SETTINGS_NAME}, or remove the folder if it "
                "was never published"
            )
        return
    remove_tree(folder)
    hidden.rename(folder)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of `release`."""
    text = "accept changes that are not committed, and no section of CHANGELOG.md; "
    text += "the folder ends in -trial"
    parser.add_argument("--trial", action="store_true", help=text)


def run(args: argparse.Namespace) -> int:
    """Run `release`."""
    release = plan_release(Paths.find(), trial=args.trial)
    folder = make_release(release)
    print((folder / SUMS).read_text(encoding="utf-8"), end="")
    print(folder)
    return 0
