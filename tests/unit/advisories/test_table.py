"""The table of advisories is true: of the patches, of the sources, and on the page."""

import ast
import re
from dataclasses import replace
from datetime import date
from functools import cache

import pytest
from packaging.version import Version

from balance_tools.advisories.table import (
    TABLE_NAME,
    Advisory,
    Judged,
    Status,
    Table,
    load_advisories,
)
from balance_tools.errors import ToolError
from balance_tools.files import exclusive
from balance_tools.paths import Paths
from balance_tools.rebase.line import all_lines, derive
from balance_tools.security_page import PAGE_NAME, page, summary
from balance_tools.series.apply import load_series, patched_files
from balance_tools.series.fixed import is_fixed, patched_in
from balance_tools.series.patchfile import parse_patch
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine

PATHS = Paths.find()
KNOWN = load_advisories(PATHS.root / TABLE_NAME)
IDS = {one.id: one for one in KNOWN.advisories}
LOCK = load_lock(PATHS.lock)
NOT_AFFECTED = [
    each.advisory
    for each in KNOWN.judge(Version(LOCK.vllm.version), patched_in(PATHS.root, LOCK))
    if each.status is Status.NOT_AFFECTED
]
ENTRY = """\
as-of = 2026-01-02
[[advisory]]
id = "GHSA-2222-3333-4444"
severity = "high 7.5"
affected = "<2.0"
what = "a long list"
workaround = "refuse lists"
"""


def patches():
    return {
        patch.name: (package, patch)
        for package in LOCK.packages
        for patch in load_series(PATHS.patches(package)).patches
    }


@cache
def patched_tree(artifact, series):
    """Upstream's files, and what the touched ones become."""
    tree = ensure_pristine(artifact, PATHS)
    return tree, patched_files(load_series(series), tree)


def wrong_in(one: Advisory, lock, series) -> list[str]:
    """What of its evidence is not so in upstream's files of `lock` with the patches.

    `series` gives the folder with the patches of a package.
    """
    wrong = []
    for wanted, lines in ((True, one.has), (False, one.lacks)):
        for line in lines:
            file, _, text = line.partition(": ")
            package = file.partition("/")[0]
            tree, patched = patched_tree(lock.packages[package], series(package))
            there = (tree / file).exists()
            if there and text:
                content = patched.get(file) or (tree / file).read_bytes()
                there = text.encode() in content
            if there != wanted:
                wrong.append(line)
    return wrong


@pytest.mark.parametrize("one", NOT_AFFECTED, ids=lambda one: one.id)
def test_what_is_not_affected_is_so_in_the_sources(one):
    assert one.has or one.lacks
    assert wrong_in(one, LOCK, PATHS.patches) == []


@pytest.mark.slow
@pytest.mark.parametrize("line", all_lines(PATHS), ids=lambda line: line.name)
def test_what_is_not_affected_is_so_in_the_sources_of_a_line(line):
    with exclusive(PATHS.build / "rebase" / ".lock"):
        series = derive(PATHS, line)
    release = Version(line.lock.vllm.version)
    for each in KNOWN.judge(release, patched_in(PATHS.root, line.lock)):
        if each.status is Status.NOT_AFFECTED:
            one = each.advisory
            assert wrong_in(one, line.lock, lambda package: series / package) == []


def test_evidence_that_is_not_so_is_found():
    file = "vllm/envs.py"
    both = (file, f"{file}: VLLM_PORT")
    one = Advisory("x", "low", "<1", "w", lacks=both, has=(*both, "vllm/none.py"))
    assert wrong_in(one, LOCK, PATHS.patches) == ["vllm/none.py", *both]


def test_each_patch_names_advisories_of_the_table_and_the_release_that_has_them():
    for name, (package, patch) in patches().items():
        assert set(patch.header.advisories) <= IDS.keys(), name
        release = patch.header.get("Fixed-In")
        if release is not None and package == "vllm":
            for one in (IDS[id_] for id_ in patch.header.advisories):
                assert one.is_fixed_in(Version(release)), f"{name}: {one.id}"


def test_what_is_fixed_here_has_a_test_that_is_there():
    for name in patched_in(PATHS.root, LOCK):
        file, _, function = IDS[name].test.partition("::")
        path = PATHS.root / file
        assert path.is_file(), f"{name}: {file or 'no test in the table'}"
        tree = ast.parse(path.read_text())
        names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        assert function in names | {""}, name


def test_the_page_has_what_the_table_says():
    text = (PATHS.root / PAGE_NAME).read_text()
    assert page(PATHS, text) == text, "run make advisories"


def test_a_page_without_a_place_for_the_tables_is_refused():
    with pytest.raises(ToolError, match=r"SECURITY\.md: expected the lines <!-- ans"):
        page(PATHS, "# Security\n")


@pytest.mark.parametrize(
    ("severity", "workaround", "said"),
    [
        ("medium 6.5", "less", "1 with a workaround, at most medium 6.5. Of 1"),
        ("critical", "less", "Of 2 that are rated *high* or *critical*, 1"),
        ("unknown", "", "0 with a workaround, and 1 of which nothing is known."),
    ],
)
def test_the_page_begins_with_how_many_are_open_and_how_bad(severity, workaround, said):
    """None of the worst is open, or it is said how many are."""
    fixed = Advisory("x", "high 7.5", "<2", "what", workaround="less")
    left = replace(fixed, severity=severity, workaround=workaround, unverified="why")
    text = summary([Judged(fixed, Status.FIXED), Judged(left, Status.OPEN)])
    assert text.startswith("**1 are fixed here, 0 do not apply, and 1 are open**: ")
    assert said in text
    assert ("none is open" in text) == (severity != "critical")
    assert "1 of all are *unverified*" in text


@pytest.mark.parametrize(
    ("release", "patched", "status"),
    [
        ("0.24.0", True, Status.NOT_AFFECTED),
        ("0.25.0", False, Status.OPEN),
        ("0.29.1", True, Status.FIXED),
        ("0.30.0rc1", False, Status.UPSTREAM),
        ("0.30.0", True, Status.UPSTREAM),
    ],
)
def test_a_release_before_in_and_behind_the_range(release, patched, status):
    # As packaging has it: a candidate of the first good release is not below it.
    one = Advisory("x", "low", ">=0.25.0, <0.30.0", "what", workaround="less")
    known = Table(date(2026, 1, 2), (one,))
    (each,) = known.judge(Version(release), {"x"} if patched else set())
    assert each.status is status


def test_a_reason_holds_inside_of_the_range_alone():
    one = Advisory("x", "low", "<0.30.0", "what", not_affected="no such file")
    known = Table(date(2026, 1, 2), (one,))
    for release, status in (("0.23", Status.NOT_AFFECTED), ("0.30", Status.UPSTREAM)):
        assert known.judge(Version(release), ())[0].status is status


def test_only_a_patch_that_names_a_release_is_fixed_by_one():
    assert not is_fixed(parse_patch("x.patch", b"Origin: vendor\n\n"), "9999")
    patch = parse_patch("x.patch", b"Fixed-In: soon\n\n")
    with pytest.raises(ToolError, match=r"x\.patch: Fixed-In: expected a release"):
        is_fixed(patch, "0.24.0")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("as-of = 2026-01-02", "as-of = 'soon'", "expected as-of = YYYY"),
        ("GHSA-2222", "CVE-2222", "expected an id GHSA-xxxx"),
        ("high 7.5", "bad", "expected an id"),
        ("high 7.5", "high seven", "wrong, missing or unknown"),
        ('"<2.0"', "2.0", "wrong, missing or unknown"),
        ("what =", "text =", "missing or unknown ('text')"),
        ("workaround", "test", "expected not-affected, workaround, remark or"),
    ],
)
def test_a_wrong_table_is_refused_with_its_place(tmp_path, old, new, said):
    (path := tmp_path / TABLE_NAME).write_text(ENTRY)
    assert [one.id for one in load_advisories(path).advisories]
    path.write_text(ENTRY.replace(old, new))
    with pytest.raises(ToolError, match=f"^{path}.*{re.escape(said)}"):
        load_advisories(path)


def test_an_advisory_stands_there_once_and_a_table_must_be_there(tmp_path):
    path = tmp_path / TABLE_NAME
    path.write_text(ENTRY + ENTRY.partition("\n")[2])
    with pytest.raises(ToolError, match="4444 stands there twice"):
        load_advisories(path)
    with pytest.raises(ToolError, match=r"none\.toml: expected the table of advi"):
        load_advisories(tmp_path / "none.toml")
