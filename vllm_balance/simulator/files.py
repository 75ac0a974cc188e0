# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Reads text files that the user names."""

import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import UsageError


def read_text(path: Path, errors: str = "strict") -> str:
    """The text of a file, read by `read_lines`."""
    return "".join(read_lines(path, errors))


def read_lines(path: Path, errors: str = "strict") -> Iterator[str]:
    """The lines of a regular file in UTF-8: a pipe or a device may have no end.

    Args:
        path: the file.
        errors: the error handler of `bytes.decode`.

    Raises:
        UsageError: the file cannot be read.
    """
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise UsageError(
                f"{path}: is no regular file; write to one what comes out of it."
            )
        with path.open(encoding="utf-8-sig", errors=errors, newline="") as file:
            yield from file
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error})."
        ) from None
    except UnicodeDecodeError:
        raise UsageError(
            f"{path}: is no text in UTF-8; unpack it if it is compressed, or convert "
            "it (iconv)."
        ) from None
