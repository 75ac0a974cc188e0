"""What a terminal can show, and what becomes of a command whose output has no place."""

from __future__ import annotations

import errno
import io
import os
import signal
import sys
from collections.abc import Callable

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EFBIG)


def print_anything() -> None:
    """From now on a letter that standard output cannot take is escaped.

    Else a command would end at its last line, with all its work done.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def printing(command: Callable[[], int]) -> int:
    """The status of a command, or one that says that its output was cut off.

    The reader of a pipe may have seen enough, and a disk may be full.
    """
    try:
        status = command()
        sys.stdout.flush()
    except OSError as error:
        is_pipe = isinstance(error, BrokenPipeError)
        if error.filename or not (is_pipe or error.errno in FULL):
            raise
        # Else Python would try once more at the end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if is_pipe:
            return 128 + signal.SIGPIPE
        print(f"error: output: {error.strerror}", file=sys.stderr)
        return 1
    return status
