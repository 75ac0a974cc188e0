"""What pip is configured to use, as pip itself says it.

pip's own command line is asked, so that its files, its PIP_* variables and their
precedence are pip's business.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from pypi_simple import PYPI_SIMPLE_ENDPOINT

from balance_tools.errors import ToolError
from balance_tools.run import capture

# Weakest first. pip reads [download] for `pip download`, which is what we do here.
SECTIONS = ("global", "download", ":env:")
DEFAULT_TIMEOUT_S = 15.0
DEFAULT_RETRIES = 5


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
    """Ask the pip of the running interpreter."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    command += ["config", "list"]
    outcome = capture(command)
    if outcome.status != 0:
        raise ToolError(
            f"{sys.executable}: expected pip to list its configuration, found "
            f"{outcome.tail!r}; fix pip's configuration, or install pip with "
            f"`{sys.executable} -m ensurepip`"
        )
    return parse_pip_config(outcome.text)


def parse_pip_config(listing: str) -> PipConfig:
    """Read the output of `pip config list`: lines `section.name='value'`."""
    by_section: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listing.splitlines():
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
