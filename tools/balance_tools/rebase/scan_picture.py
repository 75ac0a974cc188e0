"""The picture of a scan: a row for each release, a square for each patch."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from balance_tools.hooks.model import Status
from balance_tools.rebase.scan_rows import RUNS, ScannedRelease

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


GOOD, BAD, UNTRIED = "#1a7f37", "#fa4549", "#d0d7de"


def scan_picture(rows: Sequence[ScannedRelease], pin: str) -> str:
    """Return an SVG image; the pinned release is in bold.

    Left a square for each patch, then one for "checked" and one for "runs", and who
    placed the hooks.

    Args:
        rows: What the scan found.
        pin: Version of the pin.
    """
    names = [cell.patch for cell in rows[0].cells]
    used = [
        s for s in Status if any(s.label == c.status for r in rows for c in r.cells)
    ]
    key = [(COLOURS[s], s.label) for s in used] + [(UNTRIED, "not tried")]
    width = LEFT + SIDE * (len(names) + 3) + 190
    height = TOP + SIDE * len(rows) + LINE * (len(key) + 1)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="12">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    columns = [name.removesuffix(".patch") for name in names]
    for column, name in enumerate([*columns, "", "checked", "runs"]):
        x = LEFT + SIDE * column + SIDE * 0.7
        parts.append(
            f'<text transform="translate({x},{TOP - 6}) rotate(-60)">'
            f"{escape(name)}</text>"
        )
    for index, row in enumerate(rows):
        parts += _row(row, TOP + SIDE * index, "bold" if row.version == pin else "")
    for index, (colour, label) in enumerate(key):
        y = TOP + SIDE * len(rows) + LINE * (index + 1)
        parts.append(
            f'<rect x="{LEFT}" y="{y - 11}" width="12" height="12" fill="{colour}"/>'
            f'<text x="{LEFT + 18}" y="{y}">{label}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _row(row: ScannedRelease, y: int, weight: str) -> list[str]:
    squares = [
        (f"{c.patch}: {c.status}", COLOURS[Status.of(c.status)]) for c in row.cells
    ]
    checked = GOOD if row.checked else BAD if row.fit else UNTRIED
    runs = GOOD if row.runs == RUNS else BAD if row.runs else UNTRIED
    squares += [("", ""), (f"checked: {row.fit}", checked), (f"runs: {row.runs}", runs)]
    parts = [
        f'<text x="{LEFT - 8}" y="{y + SIDE * 0.7}" text-anchor="end" '
        f'font-weight="{weight or "normal"}">{escape(row.version)}</text>'
    ]
    parts += [
        f'<rect x="{LEFT + SIDE * column}" y="{y}" width="{SIDE - 2}" '
        f'height="{SIDE - 2}" fill="{colour}">'
        f"<title>{escape(f'{row.version} {title}')}</title></rect>"
        for column, (title, colour) in enumerate(squares)
        if colour
    ]
    x = LEFT + SIDE * len(squares) + 8
    return [*parts, f'<text x="{x}" y="{y + SIDE * 0.7}">{escape(row.by())}</text>']
