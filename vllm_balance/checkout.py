"""Does a checkout, or a source archive, hold what a wheel was built from."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

from vllm_balance.build_info import BuildInfo
from vllm_balance.fingerprint import LOCK, PACKAGES, lock_sha256, series_sha256

ALL_PACKAGES = (*PACKAGES, "vllm_balance")
ARCHIVE_RECORD = "commit.json"
"""In a source archive: its commit and files."""
MOST_FILES = 10


class NotACheckoutError(Exception):
    """The folder is neither; the text says what is missing."""


def differences(info: BuildInfo, checkout: Path) -> Iterator[str]:
    """A sentence on each thing that differs: commit, lock, series, every own file.

    Raises:
        NotACheckoutError: `checkout` is none.
    """
    try:
        commit, files = _identity(checkout)
        hashes = {LOCK: (info.lock_sha256, lock_sha256(checkout))}
        for package, built in info.series_sha256.items():
            name = f"patches/{package}/series"
            hashes[name] = (built, series_sha256(checkout, package))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise NotACheckoutError(
            f"{error.filename}: expected a file of a checkout, found none"
        ) from error
    if info.commit is None:
        yield "the wheel: expected to know its commit, found that it was built without"
    elif commit != info.commit:
        yield f"{checkout}: expected commit {info.commit}, found {commit}"
    for name, (built, here) in hashes.items():
        if built != here:
            yield (
                f"{checkout / name}: expected the hash of the installed wheel "
                f"{built[:12]}…, found {here[:12]}…"
            )
    sentences = _file_differences(info, checkout, files)
    yield from sentences[:MOST_FILES]
    if rest := sentences[MOST_FILES:]:
        yield f"{checkout}: {len(rest)} more files differ"


def _file_differences(info: BuildInfo, checkout: Path, files: set[str]) -> list[str]:
    """A sentence on each file; `files` are those that the checkout has of ours."""
    sentences = []
    for name in sorted(files | info.own_files.keys()):
        path = checkout / name
        if name not in info.own_files:
            if not _left_out(name, info):
                sentences.append(f"{path}: expected none, for the wheel has none")
        elif not path.is_file():
            sentences.append(f"{path}: expected the file of the wheel, found none")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != info.own_files[name]:
            sentences.append(f"{path}: expected the wheel's content, found another")
    return sentences


def _left_out(name: str, info: BuildInfo) -> bool:
    return any(name.startswith(f"{folder}/") for folder in info.left_out)


def _identity(checkout: Path) -> tuple[str, set[str]]:
    """The commit of the folder, and its files that belong into a wheel."""
    if (checkout / ".git").exists():
        commit = _git(checkout, "rev-parse", "HEAD").strip()
        listing = _git(checkout, "ls-files", "-z", "--", *ALL_PACKAGES).split("\0")
    else:
        record = json.loads((checkout / ARCHIVE_RECORD).read_text(encoding="utf-8"))
        commit, listing = record["commit"], list(record["files"])
    packages = tuple(f"{package}/" for package in ALL_PACKAGES)
    return commit, {name for name in listing if name.startswith(packages)}


def _git(checkout: Path, *arguments: str) -> str:
    command = ["git", "-C", str(checkout), *arguments]
    try:
        return subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout
    except FileNotFoundError:
        raise NotACheckoutError(
            "git: expected it to be installed, for this is a git checkout, found none"
        ) from None
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().splitlines() or ["?"]
        raise NotACheckoutError(
            f"{checkout}: expected git to read it, found {reason[0]!r}"
        ) from error
