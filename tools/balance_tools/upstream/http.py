"""HTTP as pip is configured to speak it: proxy, certificates, logins, retries."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import unquote, urlsplit, urlunsplit

import requests
import urllib3.exceptions
from urllib3.util import Retry

from balance_tools.files import CHUNK_BYTES
from balance_tools.upstream.pip_config import PipConfig

T = TypeVar("T")

NO_SUCH_PAGE = frozenset({404, 410})
TRANSIENT_STATUS = frozenset({408, 429, 500, 502, 503, 504})
BACKOFF_S = 0.5
LONGEST_PAUSE_S = 8.0


class RefusedError(Exception):
    """A source cannot deliver; the text is a clause that says why."""


class BrokenError(RefusedError):
    """A source failed in a way that may pass: worth another try."""


@dataclass(frozen=True)
class Http:
    """A session that follows pip's configuration. No URL or login is in its errors."""

    config: PipConfig
    backoff_s: float = BACKOFF_S
    """Doubled for each pause between tries; there is none before the second try."""
    _session: requests.Session = field(default_factory=requests.Session, init=False)
    _logins: dict[str, tuple[str, str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        # As pip does it: its proxy setting replaces what the environment says.
        if self.config.proxy:
            self._session.trust_env = False

    def open(
        self, url: str, headers: dict[str, str], allowed: Collection[int] = ()
    ) -> requests.Response:
        """Begin one GET, without the body.

        A login in a URL is used for every later URL of that host, as pip does.

        Args:
            url: What to get.
            headers: Of the request.
            allowed: Statuses that are an answer, beside those of success.

        Raises:
            BrokenError: it failed in a way that may pass.
            RefusedError: it failed for good.
        """
        clean, host = self._learn_login(url)
        proxy = self.config.proxy
        try:
            response = self._session.get(
                clean,
                # Bytes as they are stored: a decoded archive has another hash.
                headers={"Accept-Encoding": "identity", **headers},
                auth=self._logins.get(host),
                stream=True,
                timeout=self.config.timeout_s,
                verify=self.verify(clean),
                cert=self.config.client_cert,
                proxies=dict.fromkeys(("http", "https"), proxy) if proxy else None,
            )
        except requests.RequestException as error:
            raise _failure(error, self.config.timeout_s) from error
        if response.ok or response.status_code in allowed:
            return response
        response.close()
        passes = response.status_code in TRANSIENT_STATUS
        problem = f"it answered {response.status_code} {response.reason}"
        raise (BrokenError if passes else RefusedError)(problem)

    def page(self, url: str, accept: str) -> requests.Response | None:
        """A whole page, with retries; None where the server has no such page."""

        def once() -> requests.Response | None:
            with self.open(url, {"Accept": accept}, NO_SUCH_PAGE) as response:
                if response.status_code in NO_SUCH_PAGE:
                    return None
                try:
                    response.content  # noqa: B018  (reads the body now)
                except requests.RequestException as error:
                    raise _failure(error, self.config.timeout_s) from error
                return response

        return self.retry(once)

    @staticmethod
    def chunks(response: requests.Response) -> Iterator[bytes]:
        """The body as it was sent.

        Raises:
            BrokenError: the transfer breaks off.
        """
        try:
            yield from response.raw.stream(CHUNK_BYTES, decode_content=False)
        except (urllib3.exceptions.HTTPError, ConnectionError) as error:
            raise BrokenError("the transfer broke off") from error

    def retry(self, attempt: Callable[[], T]) -> T:
        """Repeat `attempt` while what breaks may pass, with growing pauses."""
        left = Retry(
            self.config.retries,
            backoff_factor=self.backoff_s,
            backoff_max=LONGEST_PAUSE_S,
        )
        while True:
            try:
                return attempt()
            except BrokenError as error:
                try:
                    left = left.increment(error=error)
                except urllib3.exceptions.MaxRetryError:
                    raise error from None
                left.sleep()

    def _learn_login(self, url: str) -> tuple[str, str]:
        """Take the login out of a URL; gives the bare URL and its host with port."""
        parts = urlsplit(url)
        login, _, host = parts.netloc.rpartition("@")
        if login:
            user, _, password = login.partition(":")
            self._logins[host] = (unquote(user), unquote(password))
        return urlunsplit(parts._replace(netloc=host)), host

    def verify(self, url: str) -> bool | str:
        """What requests is told of TLS: certificates, or False for a trusted host."""
        parts = urlsplit(url)
        if {parts.hostname, parts.netloc} & self.config.trusted_hosts:
            return False
        return self.config.cert or True


def _failure(error: requests.RequestException, timeout_s: float) -> RefusedError:
    """What an exception means, without its text: that may hold a login."""
    if isinstance(error, requests.exceptions.SSLError):
        return RefusedError(
            "its certificate was not accepted (pip's settings cert, proxy)"
        )
    if isinstance(error, requests.exceptions.ProxyError):
        return BrokenError("the proxy did not let us through (pip's setting proxy)")
    if isinstance(error, requests.Timeout):
        return BrokenError(f"it did not answer within {timeout_s:g} s")
    if isinstance(error, requests.ConnectionError):
        return BrokenError("no connection")
    if isinstance(error, requests.exceptions.ChunkedEncodingError):
        return BrokenError("the transfer broke off")
    return RefusedError(f"the request is not possible ({type(error).__name__})")
