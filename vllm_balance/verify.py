"""Is what is installed what was built: every file, every distribution."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from vllm_balance.build_info import BuildInfo
from vllm_balance.fingerprint import ALL_PACKAGES
from vllm_balance.installed import Installed, normalise, sha256_of

NAMES = ("vllm", "vllm-ascend", "vllm-balance")
MOST_FILES = 10
"""As many files are named one by one, of each kind."""


@dataclass(frozen=True)
class Finding:
    """Something that is not as it was built."""

    sentence: str
    repair: str
    """A command."""

    def __str__(self) -> str:
        """One line for the person at the terminal."""
        return f"{self.sentence}; repair: {self.repair}"


def verify_installation(info: BuildInfo, found: Iterable[Installed]) -> list[Finding]:
    """Compare what is installed with what the wheel's record and RECORD say.

    `found` is every installed distribution named in NAMES, in import order.
    """
    found = list(found)
    wanted = {normalise(name): version for name, version in info.distributions.items()}
    others = [d for d in found if wanted.get(d.name) != d.version]
    ours = [d for d in found if d not in others]
    repair = repair_mixed(info, found)
    findings = [Finding(sentence, repair) for sentence in strangers(info, found)]
    absent = sorted(set(wanted) - {d.name for d in found})
    findings += [
        Finding(
            f"{name} {wanted[name]}: expected to be installed, found none",
            _reinstall(info),
        )
        for name in absent
    ]
    # Where another release has taken a package's place, every file of it would differ.
    replaced = {*absent, *(distribution.name for distribution in others)}
    for main in [d for d in ours if d.name == NAMES[0]][:1]:
        findings += _check_files(main, _not_compared(replaced, wanted), info)
    return findings


def _not_compared(replaced: Iterable[str], wanted: Mapping[str, str]) -> set[str]:
    """Folders beside the packages that hold other distributions, or none, now."""
    folders = {name.replace("-", "_"): wanted.get(name) for name in replaced}
    dist_infos = {
        f"{folder}-{version}.dist-info" for folder, version in folders.items()
    }
    return {*folders, *dist_infos}


def strangers(info: BuildInfo, found: Iterable[Installed]) -> list[str]:
    """A sentence on each of `found` that is not part of the wheel."""
    wanted = {normalise(name): version for name, version in info.distributions.items()}
    sentences = []
    for distribution in found:
        name, version = distribution.name, distribution.version
        if wanted.get(name) == version:
            continue
        expected = (
            f"only {name} {wanted[name]}"
            if name in wanted
            else f"no {name} beside the wheel for {info.target}"
        )
        sentences.append(
            f"{distribution.folder}: expected {expected}, found {name} {version}"
        )
    return sentences


def repair_mixed(info: BuildInfo, found: Iterable[Installed]) -> str:
    """The commands that leave this wheel and nothing else.

    One run of pip takes one distribution of a name, and there may be several.
    """
    names = [distribution.name for distribution in found]
    rounds = max([names.count(name) for name in names], default=1)
    uninstall = f"pip uninstall -y {' '.join(NAMES)}"
    return " && ".join([uninstall] * rounds + [f"pip install {info.wheel}"])


def _check_files(
    main: Installed, not_compared: set[str], info: BuildInfo
) -> Iterator[Finding]:
    """Findings for single files; `main` is the distribution whose RECORD has them."""
    left_out = {main.folder / name for name in not_compared}
    missing, modified = [], []
    files = main.files
    for file in files:
        if left_out & set(file.path.parents):
            continue
        if not file.path.is_file():
            # Byte code has no hash in RECORD and anybody may clean it away.
            missing += [file.path] if file.sha256 else []
        elif file.sha256 and sha256_of(file.path) != file.sha256:
            modified.append(file.path)
    known = {file.path for file in files}
    foreign = [
        path
        for package in ALL_PACKAGES
        if package not in not_compared
        for path in _files_of(main.folder / package)
        if path not in known
    ]
    yield from _listed("expected as it was built, found modified", modified, info)
    yield from _listed("expected as it was built, found missing", missing, info)
    yield from _listed("expected nothing here, found a foreign file", foreign, None)


def _files_of(package: Path) -> Iterator[Path]:
    """The files of a package, without byte code whose source is there."""
    for base, folders, files in os.walk(package):
        folder = Path(base)
        folders.sort()
        for name in sorted(files):
            source = folder.parent / f"{name.partition('.')[0]}.py"
            if folder.name != "__pycache__" or not source.is_file():
                yield folder / name


def _listed(problem: str, paths: list[Path], info: BuildInfo | None) -> list[Finding]:
    """A finding for each path, the rest counted; `info` is None to remove files."""
    findings = [
        Finding(f"{path}: {problem}", _reinstall(info) if info else f"rm '{path}'")
        for path in paths[:MOST_FILES]
    ]
    if rest := paths[MOST_FILES:]:
        repair = _reinstall(info) if info else "run this again when those are removed"
        findings.append(Finding(f"{len(rest)} more files: {problem}", repair))
    return findings


def _reinstall(info: BuildInfo) -> str:
    return f"pip install --force-reinstall --no-deps {info.wheel}"
