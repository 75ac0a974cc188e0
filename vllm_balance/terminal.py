"""Output that a terminal cannot show, or that cannot be written."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


def print_anything() -> None:
    """Escape letters that standard output cannot encode.

    Else a command would fail at its last line, with all its work done.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def printing(command: Callable[[], int]) -> int:
    """The exit status of a command, or another one if its output was cut off.

    The reader of a pipe may have ended, and a disk may be full.
    """
    try:
        status = command()
        sys.stdout.flush()
    except OSError as error:
        is_pipe = isinstance(error, BrokenPipeError)
        if error.filename or not (is_pipe or error.errno in FULL):
            raise
        # Else Python would flush again at its exit, and fail.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if is_pipe:
            return 128 + signal.SIGPIPE
        print(f"error: output: {error.strerror}", file=sys.stderr)
        return 1
    return status
