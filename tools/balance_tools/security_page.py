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
    known, lock = load_advisories(paths.root / TABLE_NAME), load_lock(paths.lock)
    pin = known.judge(Version(lock.vllm.version), patched_in(paths.root, lock))
    first = f"Of {len(pin)} vulnerabilities of vLLM that were published until "
    first += f"{known.as_of} and may be in {lock.vllm.version}, {summary(pin)}"
    for mark, written in ((ANSWER, first), (TABLES, _tables(paths, known, pin))):
        before, start, rest = text.partition(mark)
        _, end, after = rest.partition(END)
        if not end:
            raise ToolError(
                f"{paths.root / PAGE_NAME}: expected the lines {mark} and {END}, found "
                "none; restore them from git"
            )
        text = f"{before}{start}\n{written}\n{end}{after}"
    return text


def summary(pin: Sequence[Judged]) -> str:
    is_open = [each for each in pin if each.status is Status.OPEN]
    aided = [each.advisory for each in is_open if each.advisory.workaround]
    worst = [each for each in pin if each.advisory.severity.startswith(WORST)]
    left = _count(worst, Status.OPEN)
    unverified = sum(bool(each.advisory.unverified) for each in pin)
    text = (
        f"**{_count(pin, Status.FIXED)} are fixed here, "
        f"{_count(pin, Status.NOT_AFFECTED)} do not apply, and {len(is_open)} "
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


def _tables(paths: Paths, known: Table, pin: Sequence[Judged]) -> str:
    lines, patches = [], _patches(paths)
    for status, (title, column) in TITLES.items():
        rows = [
            (_link(one), one.cve, one.severity, one.what, _detail(each, patches))
            for each in pin
            for one in [each.advisory]
            if each.status is status
        ]
        heads = ("advisory", "CVE", "severity", "fault", column)
        lines += [f"### {title}", "", *(table(heads, rows) if rows else ["None."]), ""]
    return "\n".join([*lines, *_lines(paths, known)])


def _count(judged: Iterable[Judged], status: Status) -> int:
    return sum(each.status is status for each in judged)


def _link(one: Advisory) -> str:
    return f"[{one.id}]({ADVISORY.format(one.id)})"


def _patches(paths: Paths) -> dict[str, str]:
    links: dict[str, str] = {}
    for package in load_lock(paths.lock).packages:
        for patch in load_series(paths.patches(package)).patches:
            link = (
                f"[{patch.name.removesuffix('.patch')}](patches/{package}/{patch.name})"
            )
            links |= dict.fromkeys(patch.header.advisories, link)
    return links


def _detail(each: Judged, patches: dict[str, str]) -> str:
    text, remark = each.detail, each.advisory.remark
    if each.advisory.unverified:
        remark = f"unverified: {each.advisory.unverified}"
    if each.status is Status.FIXED:
        test = re.sub(r"^(?:\w+/)*", "", text)
        text = f"{patches[each.advisory.id]}, [{test}]({text.partition('::')[0]})"
    return f"{text}. *{remark[0].upper()}{remark[1:]}*" if remark else text


def _lines(paths: Paths, known: Table) -> list[str]:
    rows = []
    for line in all_lines(paths):
        out = [name for (_, name), patch in line.own.items() if patch is None]
        patched = patched_in(paths.root, line.lock, out)
        judged = known.judge(Version(line.lock.vllm.version), patched)
        fixed = [a for a in judged if a.status is Status.UPSTREAM]
        groups = [[a for a in judged if a.status is status] for status in TITLES]
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
    paths = Paths.find()
    path = paths.root / PAGE_NAME
    write_atomically(path, page(paths, read_text(path)))
    print(f"{path}: written from {TABLE_NAME}")
    return 0
