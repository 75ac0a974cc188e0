"""The picture of a scan: a row for each release, a square for each patch."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from balance_tools.hooks.model import Status
from balance_tools.rebase.scan_rows import ScannedRelease

SIDE, LEFT, TOP, LINE = 22, 90, 170, 18  # pixels
COLOURS = {
    Status.UNTOUCHED: "#1a7f37",
    Status.CONTEXT_ONLY: "#4ac26b",
    Status.CONTENT_CHANGED: "#aceebb",
    Status.ALREADY_UPSTREAM: "#54aeff",
    Status.TARGET_MOVED: "#d4a72c",
    Status.CONFLICT: "#fb8f44",
    Status.TARGET_DELETED: "#fa4549",
    Status.BROKEN: "#24292f",
    Status.VANISHED: "#8250df",
    Status.MISFIT: "#bf3989",
}


def scan_picture(rows: Sequence[ScannedRelease], pin: str) -> str:
    """Return an SVG image; the pinned release is in bold."""
    names = [cell.patch for cell in rows[0].cells]
    used = [
        s for s in Status if any(s.label == c.status for r in rows for c in r.cells)
    ]
    width = LEFT + SIDE * len(names) + 170
    height = TOP + SIDE * len(rows) + LINE * (len(used) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for column, name in enumerate(names):
        x = LEFT + SIDE * column + SIDE * 0.7
        text = escape(name.removesuffix(".patch"))
        parts.append(
            f'<text transform="translate({x},{TOP - 6}) rotate(-60)">{text}</text>'
        )
    for index, row in enumerate(rows):
        y = TOP + SIDE * index
        weight = "bold" if row.version == pin else "normal"
        parts.append(
            f'<text x="{LEFT - 8}" y="{y + SIDE * 0.7}" text-anchor="end" '
            f'font-weight="{weight}">{escape(row.version)}</text>'
        )
        for column, cell in enumerate(row.cells):
            title = escape(f"{row.version} {cell.patch}: {cell.status}")
            parts.append(
                f'<rect x="{LEFT + SIDE * column}" y="{y}" width="{SIDE - 2}" '
                f'height="{SIDE - 2}" fill="{COLOURS[Status.of(cell.status)]}">'
                f"<title>{title}</title></rect>"
            )
    for index, status in enumerate(used):
        y = TOP + SIDE * len(rows) + LINE * (index + 1)
        parts.append(
            f'<rect x="{LEFT}" y="{y - 11}" width="12" height="12" '
            f'fill="{COLOURS[status]}"/><text x="{LEFT + 18}" y="{y}">'
            f"{status.label}</text>"
        )
    return "\n".join([*parts, "</svg>"]) + "\n"
