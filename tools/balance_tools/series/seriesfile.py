"""The quilt series file: which patches, in which order, with which bytes."""

from __future__ import annotations

from pathlib import Path

from balance_tools.errors import ToolError

SERIES = "series"


def read_series_file(directory: Path) -> tuple[tuple[str, bytes], ...]:
    """Return (file name, bytes) of every patch of `directory/series`, in order.

    A missing directory or a missing series file is a series with no patches.
    Comments (`#`) and empty lines are skipped.

    Raises:
        ToolError: a line has options, a name occurs twice or leaves the directory,
            or a patch file is missing.
    """
    listing = directory / SERIES
    if not listing.is_file():
        return ()
    entries: dict[str, bytes] = {}
    text = listing.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        name = line.split("#", 1)[0].strip()
        if not name:
            continue
        where = f"{listing}: line {number}"
        if len(name.split()) != 1:
            raise ToolError(
                f"{where}: expected one patch name, found {name!r}; remove the "
                "options (every patch is applied with -p1)"
            )
        if Path(name).name != name:
            raise ToolError(
                f"{where}: {name!r} is not a plain file name; keep every patch beside "
                "the series file"
            )
        if name in entries:
            raise ToolError(f"{where}: {name} is listed twice; keep one of the two")
        try:
            entries[name] = (directory / name).read_bytes()
        except FileNotFoundError:
            raise ToolError(
                f"{where}: {directory / name} does not exist; add the patch or remove "
                "the line"
            ) from None
    return tuple(entries.items())
