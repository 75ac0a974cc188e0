"""Pip's sources of files and its network options, from `pip config list`."""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import url2pathname

from pypi_simple import PYPI_SIMPLE_ENDPOINT

from balance_tools.errors import ToolError
from balance_tools.run import capture


@dataclass(frozen=True)
class Source:
    setting: str
    """The name of the setting of pip that it comes from: `find-links`."""
    location: str
    """A URL or a path; may hold a password: never print it."""

    def __str__(self) -> str:
        return f"{self.setting} ({without_secrets(self.location)})"


def without_secrets(location: str) -> str:
    """A URL without user, password and query; a path as it is."""
    parts = urlsplit(location)
    if not parts.netloc:
        return location
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


@dataclass(frozen=True)
class PipSettings:
    """The options that `pip download` takes from pip's files and PIP_* variables."""

    options: Mapping[str, str]
    """The values of pip's options, by their long names."""

    @property
    def timeout(self) -> float:
        """Seconds to wait for an answer."""
        default = self.options.get("default-timeout", "15")
        return float(self.options.get("timeout", default))

    @property
    def retries(self) -> int:
        return int(self.options.get("retries", "5"))

    @property
    def sources(self) -> tuple[Source, ...]:
        locations = {"find-links": self.options.get("find-links", "")}
        if self.options.get("no-index", "0").lower() in {"0", "false", "no", "off"}:
            locations["index-url"] = self.options.get("index-url", PYPI_SIMPLE_ENDPOINT)
            locations["extra-index-url"] = self.options.get("extra-index-url", "")
        return tuple(
            Source(setting, location)
            for setting, text in locations.items()
            for location in text.split()
        )


def pip_settings() -> PipSettings:
    run = capture([sys.executable, "-m", "pip", "config", "list"])
    if run.status:
        raise ToolError(
            "pip: expected it to read its configuration, found that `pip config list` "
            "fails; correct the file or variable that it names"
        )
    sections: dict[str, dict[str, str]] = {}
    for line in run.text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            section, _, name = key.rpartition(".")
            sections.setdefault(section, {})[name] = str(ast.literal_eval(value))
    options: dict[str, str] = {}
    for section in ("global", "download", ":env:"):  # the last one wins
        options |= sections.get(section, {})
    return PipSettings(options)


def local_path(location: str) -> Path:
    if location.startswith("file:"):
        return Path(url2pathname(urlsplit(location).path))
    return Path(location).expanduser()
