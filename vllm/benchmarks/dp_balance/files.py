# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Text files, also those that gzip compressed."""

import gzip
import zlib
from pathlib import Path

from .errors import UsageError


def read_text(path: Path, errors: str = "strict") -> str:
    """Reads a file in UTF-8, also one that gzip compressed.

    Args:
        path: the file.
        errors: what to do with bytes that are no text, as for `bytes.decode`.

    Raises:
        UsageError: it cannot be read, or is no such text.
    """
    try:
        data = path.read_bytes()
        if data.startswith(b"\x1f\x8b"):
            data = gzip.decompress(data)
        text = data.decode("utf-8-sig", errors)
        if "\0" in text and errors == "strict":
            raise ValueError("it has a null character")
    except (OSError, EOFError, ValueError, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise UsageError(
            f"{path}: cannot be read as text in UTF-8, plain or compressed by gzip "
            f"({reason})."
        ) from None
    return text
