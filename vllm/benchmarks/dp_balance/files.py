# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Text files as people have them: compressed, or from an editor of Windows."""

import codecs
import functools
import gzip
import zlib
from pathlib import Path

from .errors import UsageError

_PACKED = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"\xfd7zXZ": "xz",
    b"BZh": "bzip2",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
}
"""First bytes of what is not read, and its name."""
_MARKS = {
    codecs.BOM_UTF8: "utf-8",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""Byte order marks, those first that begin with others, and what they say."""


@functools.cache
def _read_pipe(path: Path) -> bytes:
    """What a pipe has, and that once; every policy with every seed asks."""
    return path.read_bytes()


def read_text(path: Path, errors: str = "strict") -> str:
    """Reads a file in UTF-8 or with a byte order mark, also one that gzip compressed.

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
        found = (name for mark, name in _PACKED.items() if data.startswith(mark))
        if packed := next(found, None):
            raise UsageError(f"{path}: is a {packed} file; unpack it to text.")
        marked = (name for mark, name in _MARKS.items() if data.startswith(mark))
        text = data.decode(next(marked, "utf-8"), errors).removeprefix("\ufeff")
    except OSError as error:
        raise UsageError(
            f"{path}: cannot be read ({error.strerror or error})."
        ) from None
    except (UnicodeDecodeError, EOFError, zlib.error) as error:
        raise UsageError(f"{path}: cannot be read ({error}).") from None
    if "\0" in text and errors == "strict":
        raise UsageError(
            f"{path}: is no text, or text in UTF-16 without a byte order mark; save it "
            "as UTF-8."
        )
    return text
