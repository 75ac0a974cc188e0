# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A line chart as an SVG element."""

import math
from collections.abc import Mapping, Sequence
from html import escape

_WIDTH, _HEIGHT = 480, 320
_LEFT, _BOTTOM, _TOP, _RIGHT = 60, 46, 12, 24

Point = tuple[float, float, str]
"""x, y and what the point is."""


def ticks(highest: float) -> list[float]:
    """About five round numbers from 0 to at least `highest`."""
    if highest <= 0:
        return [0.0, 1.0]
    raw = highest / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw)
    return [i * step for i in range(math.ceil(highest / step - 1e-9) + 1)]


def draw(
    title: str, x_title: str, y_title: str, lines: Mapping[str, Sequence[Point]]
) -> str:
    """Draws one line per key; the n-th has the CSS class ``line<n>``."""
    xs = ticks(max((x for points in lines.values() for x, _, _ in points), default=0))
    ys = ticks(max((y for points in lines.values() for _, y, _ in points), default=0))

    def at_x(x: float) -> float:
        return _LEFT + x / xs[-1] * (_WIDTH - _LEFT - _RIGHT)

    def at_y(y: float) -> float:
        return _HEIGHT - _BOTTOM - y / ys[-1] * (_HEIGHT - _BOTTOM - _TOP)

    parts = [
        f'<line class="grid" x1="{at_x(x):.1f}" x2="{at_x(x):.1f}" y1="{_TOP}" '
        f'y2="{_HEIGHT - _BOTTOM}"/><text class="tick" x="{at_x(x):.1f}" '
        f'y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{x:g}</text>'
        for x in xs
    ]
    parts += [
        f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{at_y(y):.1f}" '
        f'y2="{at_y(y):.1f}"/><text class="tick" x="{_LEFT - 6}" '
        f'y="{at_y(y) + 4:.1f}" text-anchor="end">{y:g}</text>'
        for y in ys
    ]
    for number, points in enumerate(lines.values()):
        path = " ".join(f"{at_x(x):.1f},{at_y(y):.1f}" for x, y, _ in points)
        parts.append(f'<polyline class="line{number}" points="{path}"/>')
        parts += [
            f'<circle class="line{number}" cx="{at_x(x):.1f}" cy="{at_y(y):.1f}" '
            f'r="3"><title>{escape(name)}</title></circle>'
            for x, y, name in points
        ]
    parts.append(
        f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 8}" text-anchor="middle">'
        f"{escape(x_title)}</text>"
        f'<text x="14" y="{(_HEIGHT - _BOTTOM) / 2}" text-anchor="middle" '
        f'transform="rotate(-90 14 {(_HEIGHT - _BOTTOM) / 2})">{escape(y_title)}</text>'
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}</svg>'
    )
