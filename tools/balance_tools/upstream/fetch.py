"""Fetch a locked file into the cache; nothing gets there without its sha256."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import exclusive, replacing, sha256_of
from balance_tools.paths import LOCK_NAME, Paths
from balance_tools.progress import progress
from balance_tools.upstream.index import BrokenError, Index, Link, SourceError
from balance_tools.upstream.lock import Artifact
from balance_tools.upstream.pip_config import Source


def fetch(artifact: Artifact, paths: Paths) -> Path:
    """The path of a locked file, which is fetched when the cache lacks it.

    The file is verified each time, also when it was cached.
    """
    cached = paths.cached(artifact.sha256, artifact.filename)
    with exclusive(cached.parent / ".lock"):
        if cached.is_file():
            if sha256_of(cached) == artifact.sha256:
                return cached
            print(f"{cached}: damaged, fetching it again", file=sys.stderr)
        index, problems = Index(), []
        for source in index.sources:
            try:
                link = _find(index, source, artifact)
                _receive(index, link, artifact, cached, index.retries)
                return cached
            except SourceError as problem:
                problems.append(f"{source}: {problem}")
    raise ToolError(
        f"{artifact.filename}: expected the {artifact.size} bytes with sha256 "
        f"{artifact.sha256} of {LOCK_NAME} from pip's configured sources, found "
        f"{'; '.join(problems) or 'no source configured'}; check the network and "
        f"`pip config list`, then run this again, or put the file at {cached}"
    )


def _find(index: Index, source: Source, artifact: Artifact) -> Link:
    for link in index.links(source, artifact.project):
        if link.filename == artifact.filename:
            if link.sha256 not in {None, artifact.sha256}:
                raise SourceError(f"it lists the file with sha256 {link.sha256}")
            return link
    raise SourceError("it does not list the file")


def _receive(
    index: Index, link: Link, artifact: Artifact, cached: Path, retries: int
) -> None:
    title = f"fetching {artifact.filename} ({artifact.size / 1e6:.1f} MB)"
    try:
        with (
            progress(title, artifact.size, "B") as report,
            index.open(link.url) as (size, chunks),
            replacing(cached) as part,
        ):
            if size not in {None, artifact.size}:
                raise SourceError(f"it offers {size} bytes")
            digest, have = hashlib.sha256(), 0
            with part.open("wb") as file:
                for chunk in chunks:
                    have += len(chunk)
                    digest.update(chunk)
                    file.write(chunk)
                    report(have)
            if have < artifact.size:
                raise BrokenError(f"the transfer broke off after {have} bytes")
            if digest.hexdigest() != artifact.sha256:
                raise SourceError(f"it sent a file with sha256 {digest.hexdigest()}")
    except BrokenError:
        if not retries:
            raise
        _receive(index, link, artifact, cached, retries - 1)
