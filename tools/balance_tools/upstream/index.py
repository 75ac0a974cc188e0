"""Find files on the indexes and in the folders that pip is configured to use."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.utils import canonicalize_name
from packaging.version import Version
from pypi_simple import (
    ACCEPT_ANY,
    DistributionPackage,
    ProjectPage,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)

from balance_tools.upstream.http import Http, RefusedError
from balance_tools.upstream.lock import release_of
from balance_tools.upstream.pip_config import PipConfig, Source


@dataclass(frozen=True)
class Link:
    """A file that a source lists."""

    source: Source
    filename: str
    url: str
    """http, https or file; without a login."""
    sha256: str | None
    size: int | None
    """Bytes."""
    yanked: str | None = None
    """Why its release was taken back, "" for no reason; None if it was not."""

    @property
    def release(self) -> tuple[str, Version | None]:
        """Project and version that the file name says; "" where it says none."""
        return release_of(self.filename) or ("", None)


class Index:
    """The sources of pip's configuration, each asked over its own protocol."""

    def __init__(self, config: PipConfig, http: Http | None = None) -> None:
        self.sources = config.sources
        self.http = http or Http(config)

    def links(self, source: Source, project: str) -> tuple[Link, ...]:
        """The files of `project` that `source` lists; none is not an error.

        Raises:
            RefusedError: a clause that says why the source is no help.
        """
        name = canonicalize_name(project)
        flat, location = source.setting == "find-links", source.location
        if urlsplit(location).scheme in {"http", "https"}:
            url = location if flat else f"{location.rstrip('/')}/{name}/"
            found = self._page(source, url, name)
        else:
            found = (_folder if flat else _local_index)(
                source, local_path(location), name
            )
        return tuple(link for link in found if link.release[0] == name)

    def _page(self, source: Source, url: str, name: str) -> Iterable[Link]:
        response = self.http.page(url, ACCEPT_ANY)
        if response is None:
            return ()
        try:
            page = ProjectPage.from_response(response, name)
        except (
            ValueError,
            UnsupportedContentTypeError,
            UnsupportedRepoVersionError,
        ) as error:
            raise RefusedError("its answer is not a page of the simple API") from error
        return _links(source, page.packages)


def local_path(location: str) -> Path:
    """The path that a file URL or a path of pip's configuration means."""
    if location.startswith("file:"):
        return Path(url2pathname(urlsplit(location).path))
    return Path(location).expanduser()


def _folder(source: Source, path: Path, name: str) -> Iterable[Link]:
    """find-links on this machine: a folder of files, or an HTML page."""
    if path.is_file():
        return _local_page(source, path, name)
    if not path.is_dir():
        raise RefusedError("there is no such folder")
    return [
        Link(source, file.name, file.resolve().as_uri(), None, file.stat().st_size)
        for file in sorted(path.iterdir())
        if file.is_file()
    ]


def _local_index(source: Source, root: Path, name: str) -> Iterable[Link]:
    """A simple index on this machine: `<root>/<project>/index.html`."""
    if not root.is_dir():
        raise RefusedError("there is no such folder")
    page = root / name / "index.html"
    return _local_page(source, page, name) if page.is_file() else ()


def _local_page(source: Source, path: Path, name: str) -> Iterable[Link]:
    try:
        html = path.read_bytes()
    except OSError as error:
        raise RefusedError(f"cannot read {path}: {error.strerror}") from error
    page = ProjectPage.from_html(name, html, base_url=path.resolve().as_uri())
    return _links(source, page.packages)


def _links(source: Source, packages: Iterable[DistributionPackage]) -> list[Link]:
    return [
        Link(
            source,
            package.filename,
            package.url,
            package.digests.get("sha256"),
            package.size,
            (package.yanked_reason or "") if package.is_yanked else None,
        )
        for package in packages
    ]
