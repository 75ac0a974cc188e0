"""The canonical writer of patches: the bytes that `quilt refresh` writes.

GNU diff makes the hunks because quilt calls it: other programs place an inserted
block differently when its first line equals the line after it. The options are those
of tools/quiltrc: two lines of context, no index lines, no dates, no section headings,
files sorted by name.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Set
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.run import capture
from balance_tools.series.apply import Series, patched_steps
from balance_tools.series.seriesfile import SERIES

CONTEXT_LINES = 2
_SAME, _DIFFERENT = 0, 1


def diff_file(path: str, old: bytes | None, new: bytes | None) -> bytes:
    """Return the diff of one file; None stands for "no such file"; b"" if equal.

    Raises:
        ToolError: GNU diff is missing, or the content is binary.
    """
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        # Like quilt, an empty old file is written as /dev/null.
        sides = [("a/", old or None, "old"), ("b/", new, "new")]
        labels: list[str] = []
        files: list[str] = []
        for prefix, content, file_name in sides:
            labels += ["--label", "/dev/null" if content is None else prefix + path]
            file = directory / file_name
            if content is not None:
                file.write_bytes(content)
            files.append(os.devnull if content is None else str(file))
        command = ["diff", f"-U{CONTEXT_LINES}", *labels, *files]
        run = capture(command, env={**os.environ, "LC_ALL": "C"})
    if run.status not in (_SAME, _DIFFERENT):
        raise ToolError(f"diff: {path}: {run.tail}")
    if run.output.startswith(b"Binary files"):
        raise ToolError(f"{path}: binary content cannot be patched; keep it out")
    return run.output


def export_patch(
    header: bytes,
    before: Mapping[str, bytes | None],
    after: Mapping[str, bytes | None],
    paths: Iterable[str],
) -> bytes:
    """Return the canonical bytes of one patch: header as it is, then the diffs."""
    bodies = (diff_file(path, before.get(path), after.get(path)) for path in paths)
    return header + b"".join(bodies)


def sorted_paths(paths: Iterable[str]) -> list[str]:
    """Sort paths by their bytes, as `sort` does in the C locale."""
    return sorted(set(paths), key=str.encode)


def export_series(series: Series, tree: Path) -> dict[str, bytes]:
    """Apply `series` to the pristine `tree` in memory and write every patch anew.

    Returns:
        File name of each patch to its canonical bytes; equal to the bytes on disk for
        a series that is canonical already.
    """
    result: dict[str, bytes] = {}
    before: dict[str, bytes | None] = {}
    for patch, after in patched_steps(series, tree):
        paths = sorted_paths(file.path for file in patch.files)
        for file in patch.files:
            if file.path not in before:
                pristine = tree / file.path
                before[file.path] = None if file.creates else pristine.read_bytes()
        result[patch.name] = export_patch(patch.header.raw, before, after, paths)
        before = {**before, **after}
    return result


def export_series_file(series: Series, folder: Path, dropped: Set[str]) -> None:
    """Copy the series file, comments too, without the patches that were dropped."""
    source = series.directory / SERIES
    text = source.read_text(encoding="utf-8") if source.is_file() else ""
    kept = [
        line
        for line in text.splitlines(keepends=True)
        if line.split("#", 1)[0].strip() not in dropped or not line.strip()
    ]
    (folder / SERIES).write_text("".join(kept), encoding="utf-8")
