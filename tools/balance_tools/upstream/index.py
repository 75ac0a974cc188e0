"""The indexes and folders that pip is configured to use: what they list and send.

pip itself reads its configuration, and its session has the proxy, certificates, logins
and retries; both are internals of pip, and used here alone. No URL or login is in an
error.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from optparse import Values
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

from packaging.utils import canonicalize_name
from packaging.version import Version
from pip._internal.commands.download import DownloadCommand
from pip._internal.exceptions import PipError
from pip._vendor.requests import RequestException
from pip._vendor.urllib3.exceptions import HTTPError
from pypi_simple import (
    ACCEPT_ANY,
    ProjectPage,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)

from balance_tools.errors import ToolError
from balance_tools.files import CHUNK_BYTES
from balance_tools.upstream.lock import release_of

NO_SUCH_PAGE = (404, 410)
NO_CONNECTION = (RequestException, PipError)
NOT_A_PAGE = (ValueError, UnsupportedContentTypeError, UnsupportedRepoVersionError)


@dataclass(frozen=True)
class Source:
    """One place where files may be found."""

    setting: str
    """The name of the setting of pip that it comes from: `find-links`."""
    location: str
    """A URL or a path; may hold a password: never print it."""

    def __str__(self) -> str:
        """The setting and the place, fit to be printed."""
        return f"{self.setting} ({without_secrets(self.location)})"


def without_secrets(location: str) -> str:
    """A URL without user, password and query; a path as it is."""
    parts = urlsplit(location)
    if not parts.netloc:
        return location
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def pip_options() -> Values:
    """What pip's files and its PIP_* variables tell `pip download`."""
    try:
        words = ["--no-cache-dir", "--no-input"]
        return DownloadCommand("download", "").parse_args(words)[0]
    except SystemExit:
        raise ToolError(
            "pip: expected it to read its configuration, found what it wrote above; "
            "correct that file or variable, see `pip config debug`"
        ) from None


def sources_of(options: Values) -> tuple[Source, ...]:
    """Where pip looks, in the order in which we do."""
    wanted = [("find-links", options.find_links)]
    if not options.no_index:
        wanted.append(("index-url", [options.index_url]))
        wanted.append(("extra-index-url", options.extra_index_urls))
    return tuple(Source(setting, one) for setting, many in wanted for one in many)


class RefusedError(Exception):
    """A source cannot deliver; the text is a clause that says why."""


class BrokenError(RefusedError):
    """A transfer broke off: worth another try."""


@dataclass(frozen=True)
class Link:
    """A file that a source lists."""

    source: Source
    filename: str
    url: str
    """http, https or file."""
    sha256: str | None
    size: int | None
    """Bytes."""
    yanked: str | None = None
    """Why its release was taken back, "" for no reason; None if it was not."""

    @property
    def release(self) -> tuple[str, Version | None]:
        """Project and version that the file name says; "" where it says none."""
        return release_of(self.filename) or ("", None)


Body = tuple[int | None, Iterable[bytes]]
"""Size in bytes, None if the server does not say, and content."""


class Index:
    """The sources of pip's configuration."""

    def __init__(self) -> None:
        options = pip_options()
        self.sources = sources_of(options)
        self.retries: int = options.retries
        """How often a broken transfer is tried again."""
        self._session = DownloadCommand("download", "")._build_session(options)

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
        elif not (folder := local_path(location)).is_dir():
            raise RefusedError("there is no such folder")
        elif flat:
            found = [
                Link(source, file.name, file.as_uri(), None, file.stat().st_size)
                for file in sorted(folder.resolve().iterdir())
                if file.is_file()
            ]
        else:
            page = folder.resolve() / name / "index.html"
            found = self._page(source, page.as_uri(), name)
        return tuple(link for link in found if link.release[0] == name)

    @contextmanager
    def open(self, url: str) -> Iterator[Body]:
        """The bytes behind a link, as they are stored.

        Raises:
            BrokenError: the transfer broke off.
            RefusedError: it failed in another way.
        """
        with self._get(url, {"Accept-Encoding": "identity"}) as response:
            _refuse_status(response)
            length = response.headers.get("Content-Length")
            yield None if length is None else int(length), _chunks(response)

    def _page(self, source: Source, url: str, name: str) -> list[Link]:
        with self._get(url, {"Accept": ACCEPT_ANY}) as response:
            if response.status_code in NO_SUCH_PAGE:
                return []
            _refuse_status(response)
            try:
                page = ProjectPage.from_response(response, name)
            except NO_CONNECTION as error:
                raise _failure(error) from error
            except NOT_A_PAGE as error:
                text = "its answer is not a page of the simple API"
                raise RefusedError(text) from error
        return [
            Link(
                source,
                package.filename,
                package.url,
                package.digests.get("sha256"),
                package.size,
                (package.yanked_reason or "") if package.is_yanked else None,
            )
            for package in page.packages
        ]

    def _get(self, url: str, headers: dict[str, str]) -> Any:
        try:
            return self._session.get(url, headers=headers, stream=True)
        except NO_CONNECTION as error:
            raise _failure(error) from error


def local_path(location: str) -> Path:
    """The path that a file URL or a path of pip's configuration means."""
    if location.startswith("file:"):
        return Path(url2pathname(urlsplit(location).path))
    return Path(location).expanduser()


def _chunks(response: Any) -> Iterator[bytes]:
    try:
        while chunk := response.raw.read(CHUNK_BYTES):
            yield chunk
    except (HTTPError, OSError) as error:
        raise BrokenError("the transfer broke off") from error


def _refuse_status(response: Any) -> None:
    if not response.ok:
        raise RefusedError(f"it answered {response.status_code} {response.reason}")


def _failure(error: Exception) -> RefusedError:
    """What an exception means, without its text: that may hold a login."""
    return RefusedError(f"no connection ({type(error).__name__})")
