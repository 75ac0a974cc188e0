# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Fills the templates beside this module, and holds the colours they share."""

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

LINE_COLOURS = (
    "#888888",
    "#4477aa",
    "#ee6677",
    "#228833",
    "#aa3377",
    "#ccbb44",
    "#66ccee",
)
"""Colours that stay apart for the colour-blind (Paul Tol's bright scheme)."""

STATE_COLOURS = {
    "prefill": "#ee7733",
    "decode": "#33659b",
    "held": "#66aadd",
    "empty": "#999999",
}
"""Of what a rank does in a timeline; waiting is as faint as the paper allows."""


def render(template: str, **values: object) -> str:
    """Fills a template of HTML; what is not `Markup` is escaped.

    Args:
        template: file name in the folder of the templates.
        values: all names that it uses.

    Raises:
        jinja2.UndefinedError: a name is missing.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template(template).render(values)
