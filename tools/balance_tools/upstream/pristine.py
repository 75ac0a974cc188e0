"""Upstream's sdists, unpacked as they are, below build/pristine/."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from balance_tools.files import disk_errors, exclusive, remove_tree
from balance_tools.manifest import Manifest, take_manifest
from balance_tools.paths import Paths
from balance_tools.upstream.archive import extract_sdist
from balance_tools.upstream.fetch import fetch
from balance_tools.upstream.lock import Artifact

Fetch = Callable[[Artifact, Paths], Path]


def ensure_pristine(artifact: Artifact, paths: Paths, get: Fetch = fetch) -> Path:
    """The folder with an sdist's files, unpacked again when it is not as it was."""
    folder = paths.unpacked(artifact.project, artifact.version)
    stamp = paths.unpacked_manifest(folder)
    inputs = {"sdist": artifact.sha256}
    with exclusive(folder.with_name(f".{folder.name}.lock")), disk_errors(folder):
        known = Manifest.read(stamp)
        if known is None or known.inputs != inputs or not known.describes(folder):
            archive = get(artifact, paths)
            stamp.unlink(missing_ok=True)
            remove_tree(folder)
            extract_sdist(archive, folder)
            take_manifest(folder, inputs).write(stamp)
    return folder
