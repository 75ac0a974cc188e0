"""The indexes and folders that pip is configured to use: what they list and send.

`requests` has proxies, logins (.netrc) and certificates from the environment, too. No
URL or login is in an error.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import urlsplit

import requests
from packaging.utils import canonicalize_name
from packaging.version import Version
from pypi_simple import (
    ACCEPT_ANY,
    ProjectPage,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)
from requests.adapters import HTTPAdapter
from urllib3.exceptions import HTTPError
from urllib3.util.retry import Retry

from balance_tools.files import CHUNK_BYTES
from balance_tools.upstream.lock import release_of
from balance_tools.upstream.pip_config import Source, local_path, pip_settings

NO_SUCH_PAGE = (404, 410)
NO_CONNECTION = (requests.RequestException, HTTPError, OSError)
TRANSIENT = (500, 502, 503, 520, 524, 527)
NOT_A_PAGE = (ValueError, UnsupportedContentTypeError, UnsupportedRepoVersionError)


class SourceError(Exception):
    """A source cannot deliver; the text is a clause that says why."""


class BrokenError(SourceError):
    """A transfer broke off: worth another try."""


@dataclass(frozen=True)
class Link:
    source: Source
    filename: str
    url: str
    """A URL of http, https or file."""
    sha256: str | None
    size: int | None
    """Bytes."""
    yanked: str | None = None
    """Why its release was taken back, "" for no reason; None if it was not."""

    @property
    def release(self) -> tuple[str, Version | None]:
        return release_of(self.filename) or ("", None)


Body = tuple[int | None, Iterable[bytes]]
"""Size in bytes, None if the server does not say, and content."""


class _Adapter(HTTPAdapter):
    """Trusts what the system trusts, too, as pip does."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(
            *args, **kwargs, ssl_context=ssl.create_default_context()
        )


class Index:
    def __init__(self) -> None:
        self._settings = pip_settings()
        self.sources = self._settings.sources
        self.retries = self._settings.retries

    @cached_property
    def _session(self) -> requests.Session:
        session = requests.Session()
        retry = Retry(self.retries, status_forcelist=TRANSIENT, backoff_factor=0.25)
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter(max_retries=retry))
        session.verify = self._settings.options.get("cert") or True
        return session

    def links(self, source: Source, project: str) -> tuple[Link, ...]:
        """The files of `project` that `source` lists; none is not an error.

        Raises:
            SourceError: a clause that says why the source is no help.
        """
        name = canonicalize_name(project)
        is_flat, location = source.setting == "find-links", source.location
        if urlsplit(location).scheme in {"http", "https"}:
            url = location if is_flat else f"{location.rstrip('/')}/{name}/"
            listed = self._page(source, url, name)
        elif not (folder := local_path(location).resolve()).is_dir():
            raise SourceError("there is no such folder")
        elif is_flat:
            listed = [
                Link(source, file.name, file.as_uri(), None, file.stat().st_size)
                for file in sorted(folder.iterdir())
                if file.is_file()
            ]
        elif (page := folder / name / "index.html").is_file():
            html = page.read_text(encoding="utf-8")
            listed = _links(source, ProjectPage.from_html(name, html, page.as_uri()))
        else:
            listed = []
        return tuple(link for link in listed if link.release[0] == name)

    @contextmanager
    def open(self, url: str) -> Iterator[Body]:
        """The bytes behind a link, as they are stored.

        Raises:
            BrokenError: the transfer broke off.
            SourceError: it failed in another way.
        """
        if url.startswith("file:"):
            try:
                file = local_path(url).open("rb")
            except OSError as error:
                raise SourceError(f"no such file ({error.strerror})") from error
            with file:
                size = local_path(url).stat().st_size
                yield size, iter(lambda: file.read(CHUNK_BYTES), b"")
            return
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
                raise SourceError(text) from error
        return _links(source, page)

    def _get(self, url: str, headers: dict[str, str]) -> Any:
        proxy = self._settings.options.get("proxy")
        try:
            return self._session.get(
                url,
                headers=headers,
                stream=True,
                timeout=self._settings.timeout,
                proxies={"http": proxy, "https": proxy} if proxy else None,
            )
        except NO_CONNECTION as error:
            raise _failure(error) from error


def _links(source: Source, page: ProjectPage) -> list[Link]:
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


def _chunks(response: Any) -> Iterator[bytes]:
    try:
        while chunk := response.raw.read(CHUNK_BYTES):
            yield chunk
    except (HTTPError, OSError) as error:
        raise BrokenError("the transfer broke off") from error


def _refuse_status(response: Any) -> None:
    if not response.ok:
        raise SourceError(f"it answered {response.status_code} {response.reason}")


def _failure(error: Exception) -> SourceError:
    """The error for an exception, without the text of that, which may hold a login."""
    return SourceError(f"no connection ({type(error).__name__})")
