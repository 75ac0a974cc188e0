"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def table(columns: Iterable[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a table."""
    head = list(columns)
    body = [f"| {' | '.join(map(str, row))} |" for row in (head, *rows)]
    return [body[0], "|---" * len(head) + "|", *body[1:]]
