"""The command `advisories`: writes the tables of SECURITY.md from advisories.toml."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable, Sequence

from packaging.version import Version

from balance_tools.advisories.table import (
    ADVISORY,
    SEVERITIES,
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
ANSWER = "<!-- answer: written by make advisories -->"
TABLES = "<!-- advisories: written by make advisories -->"
END = "<!-- end -->"
WORST = ("critical", "high")
TITLES = {
    AdvisoryState.OPEN: ("Open", "what to do"),
    AdvisoryState.FIXED: ("Fixed here", "the patch, and what fails without it"),
    AdvisoryState.NOT_AFFECTED: ("Not affected", "why"),
}


def page(paths: Paths, text: str) -> str:
    """The page `text` with its answer and its tables written anew.

    Raises:
        ToolError: it has no place for them.
    """
    known, lock = load_advisories(paths.root / TABLE_NAME), load_lock(paths.lock)
    pin = known.answers(Version(lock.vllm.version), patched_in(paths.root, lock))
    answer = f"Of {len(pin)} vulnerabilities of vLLM that were published until "
    answer += f"{known.gathered} and may be in {lock.vllm.version}, {summary(pin)}"
    for mark, written in ((ANSWER, answer), (TABLES, _tables(paths, known, pin))):
        before, start, rest = text.partition(mark)
        _, end, after = rest.partition(END)
        if not end:
            raise ToolError(
                f"{paths.root / PAGE_NAME}: expected the lines {mark} and {END}, found "
                "none; restore them from git"
            )
        text = f"{before}{start}\n{written}\n{end}{after}"
    return text


def summary(pin: Sequence[Answer]) -> str:
    """How many are in each state, and whether any of the worst is open."""
    is_open = [each for each in pin if each.state is AdvisoryState.OPEN]
    aided = [each.advisory for each in is_open if each.advisory.workaround]
    worst = [each for each in pin if each.advisory.severity.startswith(WORST)]
    left = _count(worst, AdvisoryState.OPEN)
    unverified = sum(bool(each.advisory.unverified) for each in pin)
    text = (
        f"**{_count(pin, AdvisoryState.FIXED)} are fixed here, "
        f"{_count(pin, AdvisoryState.NOT_AFFECTED)} do not apply, and {len(is_open)} "
        f"are open**: {len(aided)} with a workaround"
    )
    if aided:
        text += f", at most {max(aided, key=_badness).severity}"
    if unknown := len(is_open) - len(aided):
        text += f", and {unknown} of which nothing is known"
    text += f". Of {len(worst)} that are rated *high* or *critical*, "
    text += f"{left} are open." if left else "none is open."
    return f"{text} {unverified} of all are *unverified*: not all was found in sources."


def _badness(one: Advisory) -> tuple[int, float]:
    word, _, score = one.severity.partition(" ")
    return -SEVERITIES.index(word), float(score or 0)


def _tables(paths: Paths, known: Table, pin: Sequence[Answer]) -> str:
    """Tables for the pin, by state, and for the lines."""
    lines, patches = [], _patches(paths)
    for state, (title, column) in TITLES.items():
        rows = [
            (_link(one), one.cve, one.severity, one.what, _said(answer, patches))
            for answer in pin
            for one in [answer.advisory]
            if answer.state is state
        ]
        heads = ("advisory", "CVE", "severity", "what comes", column)
        lines += [f"### {title}", "", *(table(heads, rows) if rows else ["None."]), ""]
    return "\n".join([*lines, *_lines(paths, known)])


def _count(answers: Iterable[Answer], state: AdvisoryState) -> int:
    return sum(answer.state is state for answer in answers)


def _link(one: Advisory) -> str:
    return f"[{one.id}]({ADVISORY.format(one.id)})"


def _patches(paths: Paths) -> dict[str, str]:
    """By advisory: a link to the patch that fixes it."""
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
    if answer.advisory.unverified:
        remark = f"unverified: {answer.advisory.unverified}"
    if answer.state is AdvisoryState.FIXED:
        test = re.sub(r"^(?:\w+/)*", "", text)
        text = f"{patches[answer.advisory.id]}, [{test}]({text.partition('::')[0]})"
    return f"{text}. *{remark[0].upper()}{remark[1:]}*" if remark else text


def _lines(paths: Paths, known: Table) -> list[str]:
    """A table of the lines: the advisories that upstream's release does not fix."""
    rows = []
    for line in all_lines(paths):
        out = [name for (_, name), patch in line.own.items() if patch is None]
        patched = patched_in(paths.root, line.lock, out)
        answers = known.answers(Version(line.lock.vllm.version), patched)
        fixed = [a for a in answers if a.state is AdvisoryState.UPSTREAM]
        groups = [[a for a in answers if a.state is state] for state in TITLES]
        groups.append([a for a in fixed if a.advisory.unverified])
        cells = [", ".join(a.advisory.id for a in each) or "none" for each in groups]
        rows.append((line.name, len(fixed) - len(groups[-1]), *cells))
    titles = (
        "line",
        "fixed upstream",
        *(title.lower() for title, _ in TITLES.values()),
        "unverified, fixed by upstream's word",
    )
    return ["### The lines", "", *table(titles, rows)] if rows else []


def run(args: argparse.Namespace) -> int:
    """Write the page."""
    paths = Paths.find()
    path = paths.root / PAGE_NAME
    write_atomically(path, page(paths, read_text(path)))
    print(f"{path}: written from {TABLE_NAME}")
    return 0
