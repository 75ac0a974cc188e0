"""Manifests of folders: path and sha256 of every file."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

from balance_tools.errors import ToolError
from balance_tools.files import sha256_of, write_atomically

MANIFEST_NAME = ".vendor.json"


@dataclass(frozen=True)
class Manifest:
    inputs: Mapping[str, str]
    """The inputs that determine the content, e.g. the sha256 of an archive."""
    files: Mapping[str, str]
    """Posix path below the folder to its `content_sha256`."""

    def changed(self, folder: Path) -> list[str]:
        return [
            path
            for path, sha256 in self.files.items()
            if content_sha256(folder / path) not in (sha256, None)
        ]

    def missing(self, folder: Path) -> list[str]:
        return [path for path in self.files if not os.path.lexists(folder / path)]

    def unknown(self, folder: Path) -> list[str]:
        """The paths of the folder that are not recorded, byte code left out."""
        return [path for path in walk(folder) if path not in self.files]

    def describes(self, folder: Path) -> bool:
        return not any(f(folder) for f in (self.missing, self.unknown, self.changed))

    def write(self, path: Path) -> None:
        text = json.dumps(asdict(self), indent=1, sort_keys=True)
        write_atomically(path, text + "\n")

    @staticmethod
    def read(path: Path) -> Manifest:
        """The manifest at `path`; an empty one if there is none that can be used."""
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
            return Manifest(data["inputs"], dict(data["files"]))
        except (FileNotFoundError, LookupError, ValueError, TypeError):
            # Cut short or mangled is as good as none: the files are compared instead.
            return Manifest({}, {})


def take_manifest(folder: Path, inputs: Mapping[str, str]) -> Manifest:
    files = {path: content_sha256(folder / path) or "" for path in walk(folder)}
    return Manifest(inputs, files)


def walk(folder: Path) -> Iterator[str]:
    """The posix paths of files and links below a folder, byte code left out."""
    for base, names, files in os.walk(folder):
        here = Path(base)
        for name in sorted(names):
            if (here / name).is_symlink():
                yield (here / name).relative_to(folder).as_posix()
        names[:] = sorted(name for name in names if name != "__pycache__")
        for name in sorted(files):
            yield (here / name).relative_to(folder).as_posix()


def files_of_ours(tree: Path, tracked: frozenset[str] = frozenset()) -> list[str]:
    """The files that the manifest in a tree does not list, or that git tracks."""
    manifest = Manifest.read(tree / MANIFEST_NAME)
    paths = {path for path in manifest.unknown(tree) if path != MANIFEST_NAME}
    return sorted(paths | {path for path in tracked if os.path.lexists(tree / path)})


def ignored_in(root: Path, names: Iterable[str]) -> set[str]:
    """Returns which of `names`, relative to the repository, its .gitignore leaves out.

    Git is not called, because the files of an archive have no repository.
    """
    path = root / ".gitignore"
    if not path.is_file():
        raise ToolError(
            f"{path}: expected the file that says what is ours below vllm/, found "
            "none; restore it from git"
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    return set(GitIgnoreSpec.from_lines(lines).match_files(names))


def content_sha256(path: Path) -> str | None:
    """The sha256 of a file; "" for anything else, None if nothing is there."""
    if path.is_file():
        return sha256_of(path)
    return "" if os.path.lexists(path) else None
