"""What git tracks: only what this project wrote, and nothing about one machine."""

import functools
import re
import subprocess
import sys
from pathlib import Path

from balance_tools.paths import Paths
from balance_tools.run import git, listed_by_git
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine

PATHS = Paths.find()
WINDOW = 10
TEXT = {".py", ".sh", ".md", ".toml", ".txt", ".cfg", ".json", ".yaml", ".yml", ""}
# The text of the Apache licence is nobody's source; patches quote their context.
EXEMPT = {
    *("LICENSE", "bench/traces/agentx/LICENSE"),
    "bench/traces/Mooncake.LICENSE-APACHE",
}


def tracked():
    found = {*listed_by_git(PATHS.root)}
    assert len(found) > 200
    return found


def test_no_line_ending_is_changed_by_git():
    """With core.autocrlf patches would no longer apply."""
    names = tracked()
    asked = "\n".join(names).encode()
    done = git(PATHS.root, "check-attr", "--stdin", "text", stdin=asked)
    lines = done.text.splitlines()
    assert len(lines) == len(names)
    assert [line for line in lines if not line.endswith(": text: unset")] == []


def non_trivial_lines(path):
    """Lines with at least three letters or digits, without indentation."""
    lines = map(str.strip, path.read_bytes().decode(errors="replace").splitlines())
    return list(filter(re.compile(r"\w\W*\w\W*\w").search, lines))


def windows(path):
    hashes = [*map(hash, non_trivial_lines(path))]
    return zip(*(hashes[start:] for start in range(WINDOW)), strict=False)


def copied(ours, theirs):
    """Our files that share a window of lines with, or equal, one of theirs."""
    origin = {window: name for name, path in ours.items() for window in windows(path)}
    contents = {path.read_bytes(): name for name, path in ours.items()}
    found: dict[str, Path] = {}
    for path in theirs:
        for window in windows(path):
            if window in origin:
                found[origin[window]] = path
        if path.stat().st_size and (name := contents.get(path.read_bytes())):
            found[name] = path
    return found


def upstream_texts():
    return [
        path
        for artifact in load_lock(PATHS.lock).packages.values()
        for path in ensure_pristine(artifact, PATHS).rglob("*")
        if path.is_file() and path.suffix in TEXT and not path.is_symlink()
    ]


def test_no_tracked_file_is_or_quotes_upstream():
    theirs = upstream_texts()
    assert len(theirs) > 3000
    ours = {
        name: PATHS.root / name
        for name in tracked() - EXEMPT
        if not name.endswith(".patch") and (PATHS.root / name).is_file()
    }
    assert copied(ours, theirs) == {}


def test_the_guard_sees_a_copied_function(tmp_path):
    """Ten lines of an upstream file, indented otherwise, in a file of ours."""
    pristine = ensure_pristine(load_lock(PATHS.lock).vllm, PATHS)
    source = pristine / "vllm/v1/core/sched/scheduler.py"
    lines = non_trivial_lines(source)[200 : 200 + WINDOW]
    copy = tmp_path / "ours.py"
    copy.write_text("x = 1\n" + "\n".join("    " + line for line in lines))
    assert copied({"ours.py": copy}, [source]) == {"ours.py": source}
    copy.write_bytes(source.read_bytes())
    assert copied({"ours.py": copy}, [source]) == {"ours.py": source}


INDEX = re.compile(rb"https?://([\w.-]+)(?::[\w{}.]+)?/[^\s\"'<>)]*simple\b")
"""A page of a package index, with its host."""
NOT_REAL = re.compile(rb"127\.0\.0\.1|host|.*\.invalid")


def indexes_named(content):
    """The hosts of package indexes in a file: of any, and pip's own."""
    found = {host for host in INDEX.findall(content) if not NOT_REAL.fullmatch(host)}
    return found | {host for host in default_indexes() if host in content}


@functools.cache
def default_indexes():
    """pip's own, whatever this machine's pip is configured to ask."""
    command = [sys.executable, "-m", "pip", "--isolated", "help", "install"]
    said = subprocess.run(command, capture_output=True).stdout
    return {*INDEX.findall(said)}


def test_no_tracked_file_names_a_package_index():
    contents = {name: (PATHS.root / name).read_bytes() for name in tracked()}
    named = {name: indexes_named(content) for name, content in contents.items()}
    assert {name: hosts for name, hosts in named.items() if hosts} == {}


def test_the_guard_sees_an_index():
    (own,) = default_indexes()
    assert indexes_named(b"pip asks " + own) == {own}
    assert indexes_named(b"http://pip.company.com:8080/root/" + b"simple/") != set()
