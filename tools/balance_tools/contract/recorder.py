"""A mypy plugin that writes down every name of upstream that the checked files use.

It runs inside mypy and changes nothing there. A line a use: file, line, name.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mypy.options import Options
from mypy.plugin import Plugin

FILE_VARIABLE = "BALANCE_TOOLS_USES"


class Recorder(Plugin):
    """Asked by mypy for every attribute and call; answers with what it has."""

    def __init__(self, options: Options) -> None:
        super().__init__(options)
        # A line at a time: mypy ends its process without closing files.
        self._out = Path(os.environ[FILE_VARIABLE]).open("a", buffering=1)  # noqa: SIM115

    def _hook(self, name: str, result: str) -> Callable[[Any], Any] | None:
        if not name.startswith("vllm"):
            return None

        def record(asked: Any) -> Any:
            line = asked.context.line
            if line > 0:  # mypy asks itself when it narrows a type by `hasattr`
                self._out.write(f"{asked.api.path}\t{line}\t{name}\n")
            return getattr(asked, result)

        return record

    def get_attribute_hook(self, fullname: str) -> Callable[[Any], Any] | None:
        """An attribute of an instance."""
        return self._hook(fullname, "default_attr_type")

    def get_class_attribute_hook(self, fullname: str) -> Callable[[Any], Any] | None:
        """An attribute of a class."""
        return self._hook(fullname, "default_attr_type")

    def get_method_hook(self, fullname: str) -> Callable[[Any], Any] | None:
        """A call of a method."""
        return self._hook(fullname, "default_return_type")

    def get_function_hook(self, fullname: str) -> Callable[[Any], Any] | None:
        """A call of a function or a class."""
        return self._hook(fullname, "default_return_type")


def plugin(version: str) -> type[Plugin]:
    """The entry point that mypy asks for."""
    return Recorder
