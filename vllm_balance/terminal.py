"""What a terminal can show."""

from __future__ import annotations

import io
import sys


def print_anything() -> None:
    """From now on a letter that standard output cannot take is escaped.

    Else a command would end at its last line, with all its work done.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
