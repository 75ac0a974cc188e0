# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Text files as people have them, also compressed."""

import functools
import gzip
import zlib
from pathlib import Path

from .errors import UsageError


@functools.cache
def _read_pipe(path: Path) -> bytes:
    """What a pipe has, and that once; every policy with every seed asks."""
    return path.read_bytes()


def read_text(path: Path, errors: str = "strict") -> str:
    """Reads a file in UTF-8, also one that gzip compressed.

    Args:
        path: the file.
        errors: what to do with bytes that are no text, as for `bytes.decode`.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        data = path.read_bytes() if path.is_file() else _read_pipe(path)
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig", errors)
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error})."
        ) from None
    except (EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read ({error}).") from None
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text and errors == "strict":
        raise UsageError(f"{path}: is no text in UTF-8; unpack it, or save it so.")
    return text
