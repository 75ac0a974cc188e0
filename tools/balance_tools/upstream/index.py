"""The indexes and folders that pip is configured to use: what they list and send.

`pip config list` says which they are, and with which proxy, certificates and retries.
No URL or login is in an error.
"""

from __future__ import annotations

import ast
import re
import ssl
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

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

from balance_tools.errors import ToolError
from balance_tools.files import CHUNK_BYTES
from balance_tools.run import capture
from balance_tools.upstream.lock import release_of

NO_SUCH_PAGE = (404, 410)
NO_CONNECTION = (requests.RequestException, HTTPError, OSError)
TRANSIENT = (500, 502, 503, 520, 524, 527)
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


@dataclass(frozen=True)
class PipSettings:
    """What pip's files and its PIP_* variables tell `pip download`."""

    options: Mapping[str, str]
    """By their long names."""

    def words(self, name: str) -> list[str]:
        """The values of an option that may be given many times."""
        return self.options.get(name, "").split()

    @property
    def timeout(self) -> float:
        """Seconds."""
        default = self.options.get("default-timeout", "15")
        return float(self.options.get("timeout", default))

    @property
    def retries(self) -> int:
        """How often a broken transfer is tried again."""
        return int(self.options.get("retries", "5"))

    @property
    def sources(self) -> tuple[Source, ...]:
        """Where pip looks, in the order in which we do."""
        wanted = [("find-links", self.words("find-links"))]
        if self.options.get("no-index", "0").lower() in {"0", "false", "no", "off"}:
            url = self.options.get("index-url") or default_index()
            wanted += [("index-url", [url]) if url else ("index-url", [])]
            wanted += [("extra-index-url", self.words("extra-index-url"))]
        return tuple(Source(setting, one) for setting, many in wanted for one in many)


def pip_settings() -> PipSettings:
    """Ask pip.

    Raises:
        ToolError: it cannot read its configuration.
    """
    run = capture([sys.executable, "-m", "pip", "config", "list"])
    if run.status:
        raise ToolError(
            "pip: expected it to read its configuration, found that `pip config list` "
            "fails; correct the file or variable that it names"
        )
    found: dict[str, dict[str, str]] = {}
    for line in run.text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            section, _, name = key.rpartition(".")
            found.setdefault(section, {})[name] = str(ast.literal_eval(value))
    options: dict[str, str] = {}
    for section in ("global", "download", ":env:"):  # the last one wins
        options |= found.get(section, {})
    return PipSettings(options)


def default_index() -> str:
    """The index that pip takes where none is configured, as its help tells."""
    text = " ".join(
        capture([sys.executable, "-m", "pip", "help", "download"]).text.split()
    )
    said = re.search(r"--index-url <url>.*?\(default (\S+?)\)", text)
    return said[1] if said else ""


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


class _Adapter(HTTPAdapter):
    """Trusts what the system trusts, too, as pip does."""

    def init_poolmanager(self, *args: Any, **kwargs: Any) -> None:
        super().init_poolmanager(
            *args, **kwargs, ssl_context=ssl.create_default_context()
        )


class Index:
    """The sources of pip's configuration."""

    def __init__(self) -> None:
        self._settings = pip_settings()
        self.sources = self._settings.sources
        self.retries = self._settings.retries

    @cached_property
    def _session(self) -> requests.Session:
        settings, session = self._settings, requests.Session()
        retry = Retry(self.retries, status_forcelist=TRANSIENT, backoff_factor=0.25)
        for scheme in ("http://", "https://"):
            session.mount(scheme, _Adapter(max_retries=retry))
        if proxy := settings.options.get("proxy"):
            session.proxies = {"http": proxy, "https": proxy}
            session.trust_env = False
        session.verify = settings.options.get("cert") or True
        session.cert = settings.options.get("client-cert")
        return session

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
            listed = ProjectPage(name, [], None, None)
            if page.is_file():
                html = page.read_text(encoding="utf-8")
                listed = ProjectPage.from_html(name, html, base_url=page.as_uri())
            found = _links(source, listed)
        return tuple(link for link in found if link.release[0] == name)

    @contextmanager
    def open(self, url: str) -> Iterator[Body]:
        """The bytes behind a link, as they are stored.

        Raises:
            BrokenError: the transfer broke off.
            RefusedError: it failed in another way.
        """
        if url.startswith("file:"):
            try:
                file = local_path(url).open("rb")
            except OSError as error:
                raise RefusedError(f"no such file ({error.strerror})") from error
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
                raise RefusedError(text) from error
        return _links(source, page)

    def _get(self, url: str, headers: dict[str, str]) -> Any:
        host = urlsplit(url).netloc.rpartition("@")[2]
        settings, login = self._settings, None
        options: dict[str, Any] = {}
        for source in self.sources:  # what it lists elsewhere on its host needs it, too
            parts = urlsplit(source.location)
            if parts.username and parts.netloc.rpartition("@")[2] == host:
                login = (unquote(parts.username), unquote(parts.password or ""))
        if {host, host.partition(":")[0]} & {*settings.words("trusted-host")}:
            options["verify"] = False
        try:
            return self._session.get(
                url,
                headers=headers,
                stream=True,
                auth=login,
                timeout=settings.timeout,
                **options,
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
