"""Fetch a locked file into the cache; nothing gets there without its sha256."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import CHUNK_BYTES, disk_errors, exclusive, sha256_of
from balance_tools.paths import LOCK_NAME, Paths
from balance_tools.progress import progress
from balance_tools.upstream.http import BrokenError, Http, RefusedError
from balance_tools.upstream.index import Index, Link, local_path
from balance_tools.upstream.lock import Artifact
from balance_tools.upstream.pip_config import Source, read_pip_config

HTTP_PARTIAL_CONTENT = 206
HTTP_RANGE_NOT_SATISFIABLE = 416


def default_index() -> Index:
    """The sources of the pip that belongs to this interpreter."""
    return Index(read_pip_config())


def fetch(
    artifact: Artifact, paths: Paths, index: Callable[[], Index] = default_index
) -> Path:
    """The path of a locked file, which is fetched when the cache lacks it.

    The file is verified each time, also when it was cached. `index` is called only
    when something has to be fetched.

    Raises:
        ToolError: no source delivers it.
    """
    cached = paths.cached(artifact.sha256, artifact.filename)
    with exclusive(cached.parent / ".lock"), disk_errors(cached):
        if cached.is_file():
            if sha256_of(cached) == artifact.sha256:
                return cached
            print(f"{cached}: damaged, fetching it again", file=sys.stderr)
            cached.unlink()
        part = cached.with_name(cached.name + ".part")
        _fetch_from_any(artifact, part, index(), cached)
        part.replace(cached)
    return cached


def _fetch_from_any(artifact: Artifact, part: Path, index: Index, cached: Path) -> None:
    """Leave the verified file at `part`, from the first source that delivers it."""
    problems = []
    for source in index.sources:
        try:
            link = _find(index, source, artifact)
            _transfer(index.http, link, artifact, part)
            return
        except RefusedError as problem:
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
                raise RefusedError(f"it lists the file with sha256 {link.sha256}")
            return link
    raise RefusedError("it does not list the file")


def _transfer(http: Http, link: Link, artifact: Artifact, part: Path) -> None:
    """Complete `part` from `link` and verify it."""
    resumed = part.exists()
    while True:
        title = f"fetching {artifact.filename} ({artifact.size / 1e6:.1f} MB)"
        with progress(title, artifact.size, "B") as report:
            if link.url.startswith("file:"):
                _copy(local_path(link.url), artifact, part, report)
            else:
                http.retry(lambda: _receive(http, link, artifact, part, report))
        found = sha256_of(part)
        if found == artifact.sha256:
            return
        part.unlink()
        if not resumed:
            raise RefusedError(f"it sent a file with sha256 {found}")
        # What an earlier run had left may be at fault: once more, from the start.
        resumed = False


def _receive(
    http: Http,
    link: Link,
    artifact: Artifact,
    part: Path,
    report: Callable[[int], object],
) -> None:
    """One request for what `part` lacks; a BrokenError is worth another."""
    have = part.stat().st_size if part.exists() else 0
    if have > artifact.size:
        part.unlink()
        have = 0
    if have == artifact.size:
        return
    headers = {"Range": f"bytes={have}-"} if have else {}
    with http.open(link.url, headers, {HTTP_RANGE_NOT_SATISFIABLE}) as response:
        if response.status_code == HTTP_RANGE_NOT_SATISFIABLE:
            part.unlink()
            raise BrokenError("it could not resume the transfer")
        start = response.headers.get("Content-Range", "").startswith(f"bytes {have}-")
        if not (response.status_code == HTTP_PARTIAL_CONTENT and start):
            have = 0  # the server sends the file from its start
        length = response.headers.get("Content-Length")
        if length is not None and have + int(length) != artifact.size:
            raise RefusedError(f"it offers {have + int(length)} bytes")
        with part.open("ab" if have else "wb") as file:
            for chunk in http.chunks(response):
                have += len(chunk)
                if have > artifact.size:
                    raise RefusedError("it sent more bytes than that")
                with disk_errors(part):
                    file.write(chunk)
                report(have)
    if have < artifact.size:
        raise BrokenError(f"the transfer broke off after {have} bytes")


def _copy(
    path: Path, artifact: Artifact, part: Path, report: Callable[[int], object]
) -> None:
    """Copy a file of this machine."""
    try:
        size = path.stat().st_size
        source = path.open("rb")
    except OSError as error:
        raise RefusedError(f"cannot read {path}: {error.strerror}") from error
    if size != artifact.size:
        source.close()
        raise RefusedError(f"it offers {size} bytes")
    with source, part.open("wb") as file:
        while chunk := source.read(CHUNK_BYTES):
            file.write(chunk)
            report(file.tell())
