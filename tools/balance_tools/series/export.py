"""The canonical writer of patches: the bytes that `quilt refresh` writes.

GNU diff makes the hunks because quilt calls it: other programs place an inserted
block differently when its first line equals the line after it. The options are those
of tools/quiltrc: two lines of context, no index lines, no dates, no section headings,
files sorted by name.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.run import capture
from balance_tools.series.apply import Series, patched_steps

CONTEXT_LINES = 2
_SAME, _DIFFERENT = 0, 1


def diff_file(path: str, old: bytes, new: bytes) -> bytes:
    """Return the diff of one file; b"" if equal.

    Raises:
        ToolError: GNU diff is missing, or the content is binary.
    """
    command = ["diff", f"-U{CONTEXT_LINES}"]
    with tempfile.TemporaryDirectory() as name:
        for prefix, content in (("a", old), ("b", new)):
            (Path(name) / prefix).write_bytes(content)
            command += ["--label", f"{prefix}/{path}"]
        command += [f"{name}/a", f"{name}/b"]
        run = capture(command, env={**os.environ, "LC_ALL": "C"})
    if run.status not in (_SAME, _DIFFERENT):
        raise ToolError(f"diff: {path}: {run.tail}")
    if run.output.startswith(b"Binary files"):
        raise ToolError(f"{path}: binary content cannot be patched; keep it out")
    return run.output


def export_patch(
    header: bytes,
    before: Mapping[str, bytes],
    after: Mapping[str, bytes],
    paths: Iterable[str],
) -> bytes:
    """Return the canonical bytes of one patch: header as it is, then the diffs."""
    bodies = (diff_file(path, before[path], after[path]) for path in paths)
    return header + b"".join(bodies)


def sorted_paths(paths: Iterable[str]) -> list[str]:
    """Sort paths by their bytes, as `sort` does in the C locale."""
    return sorted(set(paths), key=str.encode)


def export_series(series: Series, tree: Path) -> dict[str, bytes]:
    """Return the canonical bytes of every patch by its name, on its pristine tree."""
    result: dict[str, bytes] = {}
    before: dict[str, bytes] = {}
    for patch, after in patched_steps(series, tree):
        paths = sorted_paths(file.path for file in patch.files)
        for path in paths:
            before.setdefault(path, (tree / path).read_bytes())
        result[patch.name] = export_patch(patch.header.raw, before, after, paths)
        before = after
    return result
