"""The new release's file with conflict markers, where a person must decide.

Placement needs no such file: it shows to a person what it could not place.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.run import git

ERROR = 128
"""The least status by which `git merge-file` says that it failed; a lesser one is the
number of conflicts."""


@dataclass(frozen=True)
class Undecided:
    """A file in which a patch has a hook without a clear place."""

    package: str
    patch: str
    path: str
    base: bytes
    """The file of the pinned release, with the earlier patches."""
    patched: bytes
    """The same with this patch."""
    new: bytes
    """The file of the new release, with what was placed of earlier patches."""
    releases: tuple[str, str]

    def merged(self) -> tuple[bytes, int]:
        """The three files as one, and how many conflicts are marked in it."""
        old, new = self.releases
        files = {self.patch: self.patched, old: self.base, new: self.new}
        with tempfile.TemporaryDirectory() as folder:
            command = ["merge-file", "--stdout", "--diff3"]
            for number, (label, content) in enumerate(files.items()):
                Path(folder, str(number)).write_bytes(content)
                command += ["-L", label]
            ended = git(Path(folder), *command, "0", "1", "2")
        if ended.status >= ERROR or ended.status < 0:
            raise ToolError(
                f"{self.path}: expected git to merge {self.patch} with {new}, found "
                f"{ended.tail}; compare the two releases by hand"
            )
        return ended.output, ended.status


Merged = dict[tuple[str, str], list[str]]
"""By package and patch: a sentence on each merged file."""


def write_merged(undecided: Iterable[Undecided], folder: Path) -> Merged:
    remove_tree(folder)
    merged: Merged = {}
    for file in undecided:
        content, conflicts = file.merged()
        path = folder / file.patch / file.path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        merged.setdefault((file.package, file.patch), []).append(
            f"{path}: the file of {file.releases[1]} merged with this patch by git, "
            f"conflicts marked: {conflicts}"
        )
    return merged
