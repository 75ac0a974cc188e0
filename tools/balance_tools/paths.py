"""Where everything lies in the repository, in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError

LOCK_NAME = "upstream.toml"


@dataclass(frozen=True)
class Paths:
    """The locations below one repository root; nothing here touches the disk."""

    root: Path

    @classmethod
    def find(cls) -> Paths:
        """Find the repository from where this module lies."""
        root = Path(__file__).resolve().parents[2]
        if not (root / "tools" / "balance_tools").is_dir():
            raise ToolError(
                f"{root}: expected the root of the repository here, found no "
                "tools/balance_tools in it; run the tools from a clone"
            )
        return cls(root)

    @property
    def lock(self) -> Path:
        """The lock: which upstream files everything is made from."""
        return self.root / LOCK_NAME

    def patches(self, package: str) -> Path:
        """The folder with `series` and the patches of one vendored package."""
        return self.root / "patches" / package

    def vendored(self, package: str) -> Path:
        """The materialised package folder: upstream, patched, and our own files."""
        return self.root / package

    @property
    def staging(self) -> Path:
        """Where a new tree is put together.

        Beside the vendored folders and not in build/, which may be another disk:
        the exchange at the end must be a rename.
        """
        return self.root / ".vendor-staging"

    @property
    def build(self) -> Path:
        """Everything that can be made again; ignored by git."""
        return self.root / "build"

    @property
    def vendor_lock(self) -> Path:
        """The file that keeps two runs of `vendor` apart."""
        return self.build / ".lock"

    @property
    def cache(self) -> Path:
        """Downloads, one folder for each sha256."""
        return self.build / "cache"

    def cached(self, sha256: str, filename: str) -> Path:
        """Where a download with this hash lies once it is verified."""
        return self.cache / sha256 / filename

    @property
    def pristine(self) -> Path:
        """Extracted sdists, `<project>-<version>/` each, as upstream made them."""
        return self.build / "pristine"

    def unpacked(self, project: str, version: str) -> Path:
        """One extracted sdist."""
        return self.pristine / f"{project}-{version}"

    @staticmethod
    def unpacked_manifest(folder: Path) -> Path:
        """The manifest of an extracted sdist, beside it."""
        return folder.with_name(f"{folder.name}.json")

    @property
    def env(self) -> Path:
        """Virtual environments that tests and the demo make."""
        return self.build / "env"

    @property
    def dist(self) -> Path:
        """Finished wheels."""
        return self.root / "dist"
