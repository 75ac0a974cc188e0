"""Compares every installed file and distribution with the build."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from vllm_balance.build_info import NOT_BUILT, BuildInfo, load_build_info
from vllm_balance.installed import Installed, find_installed, normalise, sha256_of

NAMES = ("vllm", "vllm-ascend", "vllm-balance")
PACKAGES = ("vllm", "vllm_ascend", "vllm_balance")
MOST_FINDINGS = 10


def run(chosen: argparse.Namespace) -> int:
    info = load_build_info()
    if info is None:
        print(NOT_BUILT, file=sys.stderr)
        return 1
    findings = verify_installation(info, find_installed(*NAMES))
    for finding in findings[:MOST_FINDINGS]:
        print(finding, file=sys.stderr)
    if hidden := len(findings[MOST_FINDINGS:]):
        print(f"{hidden} more; run this again when those are repaired", file=sys.stderr)
    if not findings:
        print(f"{info.wheel}: installed as it was built")
    return 1 if findings else 0


def verify_installation(info: BuildInfo, installed: Sequence[Installed]) -> list[str]:
    """A sentence with its repair on each difference from the build.

    Files are compared once no distribution is wrong: those of another would all differ.
    """
    versions = _expected_versions(info)
    repair = repair_mixed(info, installed)
    findings = [f"{line}; repair: {repair}" for line in strangers(info, installed)]
    findings += [
        f"{name} {versions[name]}: expected to be installed, found none; repair: "
        f"{_reinstall(info)}"
        for name in sorted(versions.keys() - {d.name for d in installed})
    ]
    return findings or list(_check_files(installed[0], info))


def _expected_versions(info: BuildInfo) -> dict[str, str]:
    return {normalise(name): version for name, version in info.distributions.items()}


def strangers(info: BuildInfo, installed: Iterable[Installed]) -> Iterator[str]:
    """A sentence on each distribution that is not part of the wheel."""
    versions = _expected_versions(info)
    for distribution in installed:
        expected = f"no {distribution.name} beside the wheel for {info.target}"
        if distribution.name in versions:
            expected = f"only {distribution.name} {versions[distribution.name]}"
        if versions.get(distribution.name) != distribution.version:
            actual = f"{distribution.name} {distribution.version}"
            yield f"{distribution.folder}: expected {expected}, found {actual}"


def repair_mixed(info: BuildInfo, installed: Iterable[Installed]) -> str:
    """The commands that leave only this wheel installed.

    One run of pip takes one distribution of a name, and there may be several.
    """
    names = [distribution.name for distribution in installed]
    rounds = max([names.count(name) for name in names], default=1)
    uninstall = f"pip uninstall -y {' '.join(NAMES)}"
    return " && ".join([uninstall] * rounds + [f"pip install {info.wheel}"])


def _check_files(main: Installed, info: BuildInfo) -> Iterator[str]:
    """Findings for single files; `main` is the distribution whose RECORD has them."""
    files, repair = main.files, _reinstall(info)
    if not files:
        message = f"{main.folder}: expected the RECORD of {main.name} there, found none"
        yield f"{message}; repair: {repair}"
        return
    for path, sha256 in files.items():
        # Byte code has no hash in RECORD, and may have been removed.
        if sha256 and not (path.is_file() and sha256_of(path) == sha256):
            state = "modified" if path.is_file() else "missing"
            yield f"{path}: expected as it was built, found {state}; repair: {repair}"
    for package in PACKAGES:
        for path in _files_of(main.folder / package):
            if path not in files:
                foreign = "expected nothing here, found a foreign file"
                yield f"{path}: {foreign}; repair: rm '{path}'"


def _files_of(package: Path) -> Iterator[Path]:
    """The files of a package, without byte code whose source is there."""
    for base, folders, files in os.walk(package):
        folder = Path(base)
        folders.sort()
        for name in sorted(files):
            source = folder.parent / f"{name.partition('.')[0]}.py"
            if folder.name != "__pycache__" or not source.is_file():
                yield folder / name


def _reinstall(info: BuildInfo) -> str:
    return f"pip install --force-reinstall --no-deps {info.wheel}"
