"""Run other programs to their end, and quote the end of what they wrote."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import named_in_part

TAIL_LINES = 5
WHEEL_SOURCES = ("vllm", "vllm_ascend", "vllm_balance", "patches", "tools")
"""Folders that a wheel is made from, beside the files at the top."""
PACKAGE_OF = {"git": "git 2.32 or newer", "diff": "GNU diffutils"}


@dataclass(frozen=True)
class Ended:
    status: int
    output: bytes
    errors: bytes

    @property
    def text(self) -> str:
        """The output; bytes that are not UTF-8 survive, as names of files do."""
        return self.output.decode("utf-8", errors="surrogateescape")

    @property
    def tail(self) -> str:
        return tail((self.errors or self.output).decode(errors="replace"))


def capture(
    command: Iterable[object],
    *,
    stdin: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Ended:
    arguments = list(map(str, command))
    try:
        run = subprocess.run(
            arguments, input=stdin, capture_output=True, env=env, cwd=cwd, check=False
        )
    except FileNotFoundError:
        name = arguments[0]
        raise ToolError(
            f"{name}: expected this program on PATH, found none; install "
            f"{PACKAGE_OF.get(name, name)}"
        ) from None
    return Ended(run.returncode, run.stdout, run.stderr)


def to_log(
    command: Iterable[object],
    log: Path,
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> int:
    log.parent.mkdir(parents=True, exist_ok=True)
    arguments = list(map(str, command))
    with log.open("ab") as file:
        return subprocess.call(
            arguments, env=env, cwd=cwd, stdout=file, stderr=subprocess.STDOUT
        )


def to_terminal(command: Iterable[object]) -> int:
    """Run a program that a person watches, on standard error; returns its status."""
    return subprocess.call(list(map(str, command)), stdout=sys.stderr)


def git(root: Path, *arguments: str, stdin: bytes = b"") -> Ended:
    """Ask the repository whose top is `root`, whatever the environment says.

    A hook of another repository sets GIT_DIR and more, and files without a repository
    of their own may lie in a checkout of another project.
    """
    env = {name: value for name, value in os.environ.items() if name[:4] != "GIT_"}
    # What says which settings and owners the user trusts is no repository.
    trusted = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")
    env |= {name: os.environ[name] for name in trusted if name in os.environ}
    env["GIT_CEILING_DIRECTORIES"] = str(root.resolve().parent)
    return capture(["git", "-C", root, *arguments], stdin=stdin, env=env)


def listed_by_git(root: Path, *options: str) -> list[str]:
    run = git(root, "ls-files", "-z", *options)
    if run.status:
        raise ToolError(
            f"{root}: expected a git checkout whose files git can list, found "
            f"{run.tail}; run this in a clone"
        )
    return sorted(filter(None, set(run.text.split("\0"))))


def refuse_missing(root: Path) -> None:
    """Refuse a git checkout that lacks a tracked file which a wheel is made from.

    Such are sparse checkouts. Where there is no repository there is nothing to lack.
    """
    if not (root / ".git").exists():
        return
    names = listed_by_git(root, "--", *WHEEL_SOURCES, ":(glob)*")
    if missing := [name for name in names if not os.path.lexists(root / name)]:
        raise ToolError(
            f"{named_in_part(missing)}: expected what git tracks, found no such file; "
            "run `git sparse-checkout disable` or `git restore`, or `git rm` what is "
            "not wanted"
        )


def edited(root: Path, *names: str) -> list[str]:
    """The files that do not hold, byte for byte, what the commit has.

    The index is not asked, so no flag in it hides any. One that is not there is left
    out, as a sparse checkout does.
    """
    entries = git(root, "ls-tree", "-r", "-z", "HEAD", "--", *names).text.split("\0")
    changed = []
    for about, _, name in (entry.partition("\t") for entry in entries if entry):
        path, expected = root / name, about.split()[2]
        content = None
        if path.is_symlink():
            content = os.fsencode(path.readlink())
        elif path.is_file():
            content = path.read_bytes()
        elif not os.path.lexists(path):
            continue
        digest = hashlib.sha1 if len(expected) == 40 else hashlib.sha256
        blob = b"blob %d\0%b" % (len(content or b""), content or b"")
        if content is None or digest(blob).hexdigest() != expected:
            changed.append(name)
    return changed


def tail(text: str) -> str:
    return " / ".join(line.strip() for line in text.strip().splitlines()[-TAIL_LINES:])


def tail_of(log: Path) -> str:
    return tail(log.read_text(encoding="utf-8", errors="replace"))
