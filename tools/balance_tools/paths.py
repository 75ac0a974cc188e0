"""Where everything lies in the repository, in one place."""

from __future__ import annotations

from pathlib import Path

LOCK_NAME = "upstream.toml"


class Paths:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.lock = root / LOCK_NAME
        """The lock: which upstream files everything is made from."""
        self.dist = root / "dist"
        self.build = root / "build"
        self.vendor_lock = self.build / ".lock"
        """The file that keeps two runs of `vendor` apart."""
        self.cache = self.build / "cache"
        """Downloads, one folder for each sha256."""
        self.pristine = self.build / "pristine"
        """Extracted sdists, `<project>-<version>/` each, as upstream made them."""
        self.env = self.build / "env"

    @classmethod
    def find(cls) -> Paths:
        return cls(Path(__file__).resolve().parents[2])

    def patches(self, package: str) -> Path:
        return self.root / "patches" / package

    def vendored(self, package: str) -> Path:
        return self.root / package

    def cached(self, sha256: str, filename: str) -> Path:
        return self.cache / sha256 / filename

    def unpacked(self, project: str, version: str) -> Path:
        return self.pristine / f"{project}-{version}"

    @staticmethod
    def unpacked_manifest(folder: Path) -> Path:
        return folder.with_name(f"{folder.name}.json")
