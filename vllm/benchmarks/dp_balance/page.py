# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""A self-contained HTML page: no script, and nothing that is fetched."""

from collections.abc import Sequence
from html import escape
from typing import NamedTuple


class Section(NamedTuple):
    """A part of the page."""

    title: str
    text: str
    html: str


_LINES = ("#888888", "#4477aa", "#ee6677", "#228833", "#aa3377", "#ccbb44", "#66ccee")
"""Colours that stay apart for the colour-blind (Paul Tol's bright scheme)."""

STATE_COLOURS = {
    "prefill": "#ee7733",
    "decode": "#33659b",
    "held": "#66aadd",
    "empty": "#999999",
}
"""Of what a rank does in a timeline; waiting is as faint as the paper allows."""

_STYLE = """
:root { color-scheme: light dark; --ink: #222; --paper: #fff; --faint: #ddd; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #ddd; --paper: #181818; --faint: #444; }
}
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink);
  background: var(--paper); max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2.5rem; }
h3 { font-size: 1rem; margin: 1.5rem 0 0; } h3 + p { margin: 0 0 .4rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; text-align: right; white-space: nowrap;
  border-bottom: 1px solid var(--faint); }
th:first-child { text-align: left; }
svg { width: 100%; height: auto; } svg text { fill: var(--ink); font-size: 12px; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(20rem, 1fr)); }
.grid { stroke: var(--faint); } polyline { fill: none; stroke-width: 2; }
.legend { list-style: none; padding: 0; display: flex; flex-wrap: wrap;
  gap: .3rem 1.2rem; }
.legend i { display: inline-block; width: .9em; height: .9em; margin-right: .4em;
  vertical-align: -.1em; }
path.wait { fill: var(--faint); } i.wait { background: var(--faint); }
"""


def page(title: str, description: str, sections: Sequence[Section]) -> str:
    """The page as text."""
    lines = "".join(
        f"polyline.line{number} {{ stroke: {colour}; }} circle.line{number} "
        f"{{ fill: {colour}; }} i.line{number} {{ background: {colour}; }}\n"
        for number, colour in enumerate(_LINES)
    )
    states = "".join(
        f"path.{state} {{ fill: {colour}; }} i.{state} {{ background: {colour}; }}\n"
        for state, colour in STATE_COLOURS.items()
    )
    body = "".join(
        f"<section><h2>{escape(section.title)}</h2><p>{escape(section.text)}</p>"
        f"{section.html}</section>\n"
        for section in sections
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        # An icon in the page, or the browser asks the server for one.
        '<link rel="icon" href="data:,">'
        f"<title>{escape(title)}</title><style>{_STYLE}{lines}{states}</style></head>\n"
        f"<body><h1>{escape(title)}</h1><p>{escape(description)}</p>\n{body}"
        "</body></html>\n"
    )
