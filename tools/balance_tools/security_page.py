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
    Judged,
    Status,
    Table,
    load_advisories,
)
from balance_tools.errors import ToolError
from balance_tools.files import write_atomically
from balance_tools.paths import Paths
from balance_tools.rebase.line import all_lines
from balance_tools.series.apply import load_series
from balance_tools.series.fixed import patched_in
from balance_tools.text import read_text, table
from balance_tools.upstream.lock import load_lock

PAGE_NAME = "SECURITY.md"
ANSWER = "<!-- answer: written by make advisories -->"
TABLES = "<!-- advisories: written by make advisories -->"
END = "<!-- end -->"
WORST = ("critical", "high")
TITLES = {
    Status.OPEN: ("Open", "what to do"),
    Status.FIXED: ("Fixed here", "the patch, and what fails without it"),
    Status.NOT_AFFECTED: ("Not affected", "why"),
}


def page(paths: Paths, text: str) -> str:
    advisories, lock = load_advisories(paths.root / TABLE_NAME), load_lock(paths.lock)
    pin = advisories.judge(Version(lock.vllm.version), patched_in(paths.root, lock))
    first = f"Of {len(pin)} vulnerabilities of vLLM that were published until "
    first += f"{advisories.as_of} and may be in {lock.vllm.version}, {summary(pin)}"
    for mark, written in ((ANSWER, first), (TABLES, _tables(paths, advisories, pin))):
        before, start, tail = text.partition(mark)
        _, end, after = tail.partition(END)
        if not end:
            raise ToolError(
                f"{paths.root / PAGE_NAME}: expected the lines {mark} and {END}, found "
                "none; restore them from git"
            )
        text = f"{before}{start}\n{written}\n{end}{after}"
    return text


def summary(pin: Sequence[Judged]) -> str:
    is_open = [judged for judged in pin if judged.status is Status.OPEN]
    helped = [judged.advisory for judged in is_open if judged.advisory.workaround]
    worst = [judged for judged in pin if judged.advisory.severity.startswith(WORST)]
    open_worst = _count(worst, Status.OPEN)
    unverified = sum(bool(judged.advisory.unverified) for judged in pin)
    text = (
        f"**{_count(pin, Status.FIXED)} are fixed here, "
        f"{_count(pin, Status.NOT_AFFECTED)} do not apply, and {len(is_open)} "
        f"are open**: {len(helped)} with a workaround"
    )
    if helped:
        text += f", at most {max(helped, key=_badness).severity}"
    if unknown := len(is_open) - len(helped):
        text += f", and {unknown} of which nothing is known"
    text += f". Of {len(worst)} that are rated *high* or *critical*, "
    text += f"{open_worst} are open." if open_worst else "none is open."
    return f"{text} {unverified} of all are *unverified*: not all was found in sources."


def _badness(advisory: Advisory) -> tuple[int, float]:
    word, _, score = advisory.severity.partition(" ")
    return -SEVERITIES.index(word), float(score or 0)


def _tables(paths: Paths, advisories: Table, pin: Sequence[Judged]) -> str:
    lines, patches = [], _patches(paths)
    for status, (title, column) in TITLES.items():
        rows = [
            (_link(a), a.cve, a.severity, a.what, _detail(entry, patches))
            for entry in pin
            for a in [entry.advisory]
            if entry.status is status
        ]
        heads = ("advisory", "CVE", "severity", "fault", column)
        lines += [f"### {title}", "", *(table(heads, rows) if rows else ["None."]), ""]
    return "\n".join([*lines, *_lines(paths, advisories)])


def _count(judged: Iterable[Judged], status: Status) -> int:
    return sum(entry.status is status for entry in judged)


def _link(advisory: Advisory) -> str:
    return f"[{advisory.id}]({ADVISORY.format(advisory.id)})"


def _patches(paths: Paths) -> dict[str, str]:
    links: dict[str, str] = {}
    for package in load_lock(paths.lock).packages:
        for patch in load_series(paths.patches(package)).patches:
            link = (
                f"[{patch.name.removesuffix('.patch')}](patches/{package}/{patch.name})"
            )
            links |= dict.fromkeys(patch.header.advisories, link)
    return links


def _detail(judged: Judged, patches: dict[str, str]) -> str:
    text, remark = judged.detail, judged.advisory.remark
    if judged.advisory.unverified:
        remark = f"unverified: {judged.advisory.unverified}"
    if judged.status is Status.FIXED:
        test = re.sub(r"^(?:\w+/)*", "", text)
        text = f"{patches[judged.advisory.id]}, [{test}]({text.partition('::')[0]})"
    return f"{text}. *{remark[0].upper()}{remark[1:]}*" if remark else text


def _lines(paths: Paths, advisories: Table) -> list[str]:
    rows = []
    for line in all_lines(paths):
        out = [name for (_, name), patch in line.own.items() if patch is None]
        patched = patched_in(paths.root, line.lock, out)
        judged = advisories.judge(Version(line.lock.vllm.version), patched)
        fixed = [a for a in judged if a.status is Status.UPSTREAM]
        groups = [[a for a in judged if a.status is status] for status in TITLES]
        groups.append([a for a in fixed if a.advisory.unverified])
        cells = [", ".join(a.advisory.id for a in group) or "none" for group in groups]
        rows.append((line.name, len(fixed) - len(groups[-1]), *cells))
    titles = (
        "line",
        "fixed upstream",
        *(title.lower() for title, _ in TITLES.values()),
        "unverified, fixed by upstream's word",
    )
    return ["### The lines", "", *table(titles, rows)] if rows else []


def run(args: argparse.Namespace) -> int:
    paths = Paths.find()
    path = paths.root / PAGE_NAME
    write_atomically(path, page(paths, read_text(path)))
    print(f"{path}: written from {TABLE_NAME}")
    return 0
