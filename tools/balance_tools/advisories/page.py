"""The command `advisories`: writes the tables of SECURITY.md from advisories.toml."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence

from packaging.version import Version

from balance_tools.advisories.table import (
    TABLE_NAME,
    Advisory,
    AdvisoryState,
    Answer,
    Table,
    load_advisories,
    patched_in,
)
from balance_tools.errors import ToolError
from balance_tools.files import write_atomically
from balance_tools.paths import Paths
from balance_tools.rebase.line import all_lines
from balance_tools.series.apply import load_series
from balance_tools.text import read_text, table
from balance_tools.upstream.lock import load_lock

PAGE_NAME = "SECURITY.md"
START, END = "<!-- advisories: written by make advisories -->", "<!-- end -->"
TITLES = {
    AdvisoryState.OPEN: ("Open", "what to do"),
    AdvisoryState.MENDED: ("Mended here", "the patch, and what fails without it"),
    AdvisoryState.NOT_AFFECTED: ("Not affected", "why"),
}


def page(paths: Paths, text: str) -> str:
    """The page `text` with its tables written anew.

    Raises:
        ToolError: it has no place for them.
    """
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not end:
        raise ToolError(
            f"{paths.root / PAGE_NAME}: expected the lines {START} and {END}, found "
            "none; restore them from git"
        )
    return f"{before}{start}\n{tables(paths)}{end}{after}"


def tables(paths: Paths) -> str:
    """The text between the marks: tables for the pin, by state, and for the lines."""
    known, lock = load_advisories(paths.root / TABLE_NAME), load_lock(paths.lock)
    pin = known.answers(Version(lock.vllm.version), patched_in(paths.root, lock))
    numbers = [
        f"{_count(pin, state)} {title.lower()}" for state, (title, _) in _used(pin)
    ]
    lines = [
        f"Of {len(pin)} advisories that were gathered until {known.gathered}, for "
        f"{lock.vllm.version}: {', '.join(numbers)}.",
        "",
    ]
    patches = _patches(paths)
    for state, (title, column) in _used(pin):
        rows = [
            (_name(one), one.severity, one.what, _said(answer, patches))
            for answer in pin
            for one in [answer.advisory]
            if answer.state is state
        ]
        lines += [f"### {title}", ""]
        lines += [*table(("advisory", "severity", "what comes", column), rows), ""]
    return "\n".join([*lines, *_lines(paths, known)]) + "\n"


def _used(answers: Sequence[Answer]) -> list[tuple[AdvisoryState, tuple[str, str]]]:
    return [entry for entry in TITLES.items() if _count(answers, entry[0])]


def _count(answers: Iterable[Answer], state: AdvisoryState) -> int:
    return sum(answer.state is state for answer in answers)


def _name(one: Advisory) -> str:
    link = (
        f"[{one.id}](https://github.com/vllm-project/vllm/security/advisories/{one.id})"
    )
    return f"{link} {one.cve}".strip()


def _patches(paths: Paths) -> dict[str, str]:
    """By advisory: a link to the patch that mends it."""
    found: dict[str, str] = {}
    for package in load_lock(paths.lock).packages:
        for patch in load_series(paths.patches(package)).patches:
            link = (
                f"[{patch.name.removesuffix('.patch')}](patches/{package}/{patch.name})"
            )
            found |= dict.fromkeys(patch.header.advisories, link)
    return found


def _said(answer: Answer, patches: dict[str, str]) -> str:
    text, remark = answer.text, answer.advisory.remark
    if answer.state is AdvisoryState.MENDED:
        test = re.sub(r"^(?:\w+/)*", "", text)
        text = f"{patches[answer.advisory.id]}, [{test}]({text.partition('::')[0]})"
    return f"{text}. *{remark[0].upper()}{remark[1:]}*" if remark else text


def _lines(paths: Paths, known: Table) -> list[str]:
    """A table of the lines: the advisories that upstream's release does not mend."""
    rows = []
    for line in all_lines(paths):
        out = [name for (_, name), patch in line.own.items() if patch is None]
        patched = patched_in(paths.root, line.lock, out)
        answers = known.answers(Version(line.lock.vllm.version), patched)
        cells = [
            ", ".join(a.advisory.id for a in answers if a.state is state) or "none"
            for state in TITLES
        ]
        rows.append((line.name, _count(answers, AdvisoryState.UPSTREAM), *cells))
    titles = (
        "line",
        "mended upstream",
        *(title.lower() for title, _ in TITLES.values()),
    )
    return ["### The lines", "", *table(titles, rows)] if rows else []


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    paths = Paths.find()
    path = paths.root / PAGE_NAME
    write_atomically(path, page(paths, read_text(path)))
    print(f"{path}: written from {TABLE_NAME}")
    return 0
