"""The indexes and folders that pip is configured to use: what they list and send.

pip's own command line is asked for the configuration, so that its files, its PIP_*
variables and their precedence are pip's business. Proxy, certificates and retries are
pip's, and a login in a URL holds for all of that host. No URL or login is in an error.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit
from urllib.request import url2pathname

import requests
import urllib3.exceptions
from packaging.utils import canonicalize_name
from packaging.version import Version
from pypi_simple import (
    ACCEPT_ANY,
    PYPI_SIMPLE_ENDPOINT,
    ProjectPage,
    UnsupportedContentTypeError,
    UnsupportedRepoVersionError,
)
from requests.adapters import HTTPAdapter
from urllib3.util import Retry

from balance_tools.errors import ToolError
from balance_tools.files import CHUNK_BYTES
from balance_tools.run import capture
from balance_tools.upstream.lock import release_of

# Weakest first. pip reads [download] for `pip download`, which is what we do here.
SECTIONS = ("global", "download", ":env:")
DEFAULT_TIMEOUT_S = 15.0
DEFAULT_RETRIES = 5
NO_SUCH_PAGE = (404, 410)
TRANSIENT_STATUS = (408, 429, 500, 502, 503, 504)
BACKOFF_S = 0.5
NOT_A_PAGE = (ValueError, UnsupportedContentTypeError, UnsupportedRepoVersionError)


@dataclass(frozen=True)
class Source:
    """One place where files may be found."""

    setting: str
    """The name of the setting of pip that it comes from: `find-links`."""
    location: str
    """A URL or, for find-links, also a path; may hold a password: never print it."""

    def __str__(self) -> str:
        """The setting and the place, fit to be printed."""
        return f"{self.setting} ({without_secrets(self.location)})"


@dataclass(frozen=True)
class PipConfig:
    """The settings that matter when files are looked for and fetched."""

    sources: tuple[Source, ...]
    proxy: str | None = None
    cert: str | None = None
    client_cert: str | None = None
    trusted_hosts: frozenset[str] = frozenset()
    timeout_s: float = DEFAULT_TIMEOUT_S
    retries: int = DEFAULT_RETRIES
    """How often a broken transfer is tried again."""


def read_pip_config() -> PipConfig:
    """Ask the pip of this interpreter, whose lines are `section.name='value'`."""
    options = ("--disable-pip-version-check", "config", "list")
    outcome = capture([sys.executable, "-m", "pip", *options])
    if outcome.status != 0:
        raise ToolError(
            f"{sys.executable}: expected pip to list its configuration, found "
            f"{outcome.tail!r}; fix pip's configuration, or install pip with "
            f"`{sys.executable} -m ensurepip`"
        )
    by_section: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in outcome.text.splitlines():
        match = re.fullmatch(r"(:env:|[^.=]+)\.([^=]+)=(['\"].*)", line)
        if match and match[1] in by_section:
            name = match[2].replace("default-timeout", "timeout")  # one option of pip
            by_section[match[1]][name] = str(ast.literal_eval(match[3]))
    settings: dict[str, str] = {}
    for section in SECTIONS:
        settings.update(by_section[section])
    return PipConfig(
        sources=_sources(settings),
        proxy=settings.get("proxy"),
        cert=settings.get("cert"),
        client_cert=settings.get("client-cert"),
        trusted_hosts=frozenset(settings.get("trusted-host", "").split()),
        timeout_s=float(settings.get("timeout", DEFAULT_TIMEOUT_S)),
        retries=int(settings.get("retries", DEFAULT_RETRIES)),
    )


def without_secrets(location: str) -> str:
    """A URL without user, password and query; a path as it is."""
    parts = urlsplit(location)
    if not parts.netloc:
        return location
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def _sources(settings: Mapping[str, str]) -> tuple[Source, ...]:
    wanted = [("find-links", settings.get("find-links", ""))]
    if settings.get("no-index", "").lower() not in {"1", "true", "yes", "on", "y", "t"}:
        wanted += [
            ("index-url", settings.get("index-url", PYPI_SIMPLE_ENDPOINT)),
            ("extra-index-url", settings.get("extra-index-url", "")),
        ]
    return tuple(
        Source(setting, location)
        for setting, locations in wanted
        for location in locations.split()
    )


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

    def __init__(self, config: PipConfig, backoff_s: float = BACKOFF_S) -> None:
        self.sources, self.retries = config.sources, config.retries
        self._config = config
        self._session = requests.Session()
        again = Retry(
            config.retries,
            backoff_factor=backoff_s,
            status_forcelist=TRANSIENT_STATUS,
            raise_on_status=False,
        )
        for scheme in ("http://", "https://"):
            self._session.mount(scheme, HTTPAdapter(max_retries=again))
        self._logins: dict[str, str] = {}
        if config.proxy:  # replaces what the environment says
            self._session.trust_env = False
            self._session.proxies = dict.fromkeys(("http", "https"), config.proxy)

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
            found = _folder(source, local_path(location), name, flat)
        return tuple(link for link in found if link.release[0] == name)

    @contextmanager
    def open(self, url: str) -> Iterator[Body]:
        """The bytes behind a link, as they are stored.

        Raises:
            BrokenError: the transfer broke off.
            RefusedError: it failed in another way.
            OSError: a file cannot be read.
        """
        if url.startswith("file:"):
            with (path := local_path(url)).open("rb") as file:
                chunks = iter(lambda: file.read(CHUNK_BYTES), b"")
                yield path.stat().st_size, chunks
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
                return _links(source, ProjectPage.from_response(response, name))
            except requests.RequestException as error:
                raise _failure(error) from error
            except NOT_A_PAGE as error:
                text = "its answer is not a page of the simple API"
                raise RefusedError(text) from error

    def _get(self, url: str, headers: dict[str, str]) -> requests.Response:
        parts = urlsplit(url)
        login, _, host = parts.netloc.rpartition("@")
        if login:
            self._logins[host] = parts.netloc
        netloc = self._logins.get(host, host)
        try:
            return self._session.get(
                urlunsplit(parts._replace(netloc=netloc)),
                headers=headers,
                stream=True,
                timeout=self._config.timeout_s,
                verify=self.verify(url),
                cert=self._config.client_cert,
            )
        except requests.RequestException as error:
            raise _failure(error) from error

    def verify(self, url: str) -> bool | str:
        """What requests is told of TLS: certificates, or False for a trusted host."""
        parts = urlsplit(url)
        hosts = {parts.hostname, parts.netloc.rpartition("@")[2]}
        if hosts & self._config.trusted_hosts:
            return False
        return self._config.cert or True


def default_index() -> Index:
    """The sources of the pip that belongs to this interpreter."""
    return Index(read_pip_config())


def local_path(location: str) -> Path:
    """The path that a file URL or a path of pip's configuration means."""
    if location.startswith("file:"):
        return Path(url2pathname(urlsplit(location).path))
    return Path(location).expanduser()


def _folder(source: Source, path: Path, name: str, flat: bool) -> list[Link]:
    """A folder of files (flat), or one with `<project>/index.html`."""
    if not path.is_dir():
        raise RefusedError("there is no such folder")
    if flat:
        files = [file.resolve() for file in sorted(path.iterdir()) if file.is_file()]
        return [
            Link(source, file.name, file.as_uri(), None, file.stat().st_size)
            for file in files
        ]
    page = path / name / "index.html"
    if not page.is_file():
        return []
    base = page.resolve().as_uri()
    return _links(source, ProjectPage.from_html(name, page.read_bytes(), base_url=base))


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


def _chunks(response: requests.Response) -> Iterator[bytes]:
    try:
        yield from response.raw.stream(CHUNK_BYTES, decode_content=False)
    except (urllib3.exceptions.HTTPError, ConnectionError) as error:
        raise BrokenError("the transfer broke off") from error


def _refuse_status(response: requests.Response) -> None:
    if not response.ok:
        raise RefusedError(f"it answered {response.status_code} {response.reason}")


def _failure(error: requests.RequestException) -> RefusedError:
    """What an exception means, without its text: that may hold a login."""
    return RefusedError(f"no connection ({type(error).__name__})")
