"""The folder of a supported release, lines/NAME: lock, hashes, own patches."""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass
from pathlib import Path

import tomlkit

from balance_tools.errors import ToolError
from balance_tools.files import write_atomically
from balance_tools.paths import LOCK_NAME, Paths
from balance_tools.series.patchfile import Patch, parse_patch
from balance_tools.upstream.lock import Lock, load_lock

HASHES = "series.toml"
_OWN = "own"
_NOTE = """\
The sha256 of the whole series of this release, by package. Patches that are not in this
folder are derived from those of the pin. Of those that are, [own] has the sha256 of the
lines that they change, and of those that the pin's patch changed when they were adapted
to it. Written by tools/rebase.sh --line and --renew-line.
"""


@dataclass(frozen=True)
class Own:
    """What an own patch changes, and the pin's patch of that name (sha256)."""

    pin: str
    line: str


@dataclass(frozen=True)
class Hashes:
    """sha256 of each series by package; of each own patch by name."""

    series: dict[str, str]
    own: dict[str, Own]


@dataclass(frozen=True)
class SupportedRelease:
    """`folder` holds upstream.toml, series.toml and changed patches."""

    name: str
    folder: Path

    @classmethod
    def find(cls, paths: Paths, name: str) -> SupportedRelease:
        """Return a supported release of the repository.

        Raises:
            ToolError: there is none of this name.
        """
        release = cls(name, paths.root / "lines" / name)
        if Path(name).name != name or not (release.folder / HASHES).is_file():
            known = sorted(p.parent.name for p in paths.root.glob(f"lines/*/{HASHES}"))
            raise ToolError(
                f"lines/{name}: expected a supported release, found none; there are "
                f"{', '.join(known) or 'none'}"
            )
        return release

    @property
    def lock_file(self) -> Path:
        """Its lock."""
        return self.folder / LOCK_NAME

    @property
    def lock_text(self) -> str:
        """The text of the lock."""
        return self.lock_file.read_text(encoding="utf-8")

    def lock(self) -> Lock:
        """Load its lock."""
        return load_lock(self.lock_file)

    def hashes(self) -> Hashes:
        """Read the hashes."""
        text = (self.folder / HASHES).read_text(encoding="utf-8")
        data = tomlkit.parse(text).unwrap()
        own = data.pop(_OWN, {})
        return Hashes(data, {name: Own(**entry) for name, entry in own.items()})

    def write_hashes(self, hashes: Hashes) -> None:
        """Write the hashes: the old file or the new one survives a crash."""
        document = tomlkit.document()
        for text in _NOTE.splitlines():
            document.add(tomlkit.comment(text))
        for package, sha256 in hashes.series.items():
            document.add(package, tomlkit.item(sha256))
        if hashes.own:
            table = tomlkit.table(is_super_table=True)
            for name, own in sorted(hashes.own.items()):
                table.add(name, tomlkit.item(asdict(own)))
            document.add(_OWN, table)
        write_atomically(self.folder / HASHES, tomlkit.dumps(document))

    def own_patches(self) -> dict[str, dict[str, Patch]]:
        """Return the patches that a person changed for it, by package."""
        return {
            package: {
                path.name: parse_patch(path.name, path.read_bytes())
                for path in sorted((self.folder / "patches" / package).glob("*.patch"))
            }
            for package in self.lock().packages
        }


def change_sha256(patch: Patch) -> str:
    """Hash the lines that a patch adds and takes out, wherever they stand."""
    return hashlib.sha256(repr(patch.changes).encode()).hexdigest()
