"""The two-tree git repository: old upstream with the series on it, and new upstream.

Git runs with none of the user's settings, so that the same input gives the same merge
on every machine.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.run import Ended, capture, git
from balance_tools.series.apply import Series, patched_steps

OLD, NEW, RESULT = "old-upstream", "new-upstream", "result"

_SETTINGS = {
    "advice.detachedHead": "false",
    "commit.gpgSign": "false",
    "core.autocrlf": "false",
    "core.compression": "0",
    "core.fileMode": "true",
    "core.fsync": "none",
    "core.hooksPath": os.devnull,
    "core.safecrlf": "false",
    "diff.algorithm": "histogram",
    "gc.auto": "0",
    "init.defaultBranch": RESULT,
    "merge.conflictStyle": "diff3",
    "merge.renames": "false",
    "rebase.autoStash": "false",
    "rerere.enabled": "false",
}
_ENVIRONMENT = {
    "EDITOR": "true",
    "GIT_AUTHOR_DATE": "1700000000 +0000",
    "GIT_AUTHOR_EMAIL": "rebase@localhost",
    "GIT_AUTHOR_NAME": "rebase",
    "GIT_COMMITTER_DATE": "1700000000 +0000",
    "GIT_COMMITTER_EMAIL": "rebase@localhost",
    "GIT_COMMITTER_NAME": "rebase",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_EDITOR": "true",
    "GIT_TERMINAL_PROMPT": "0",
    "LC_ALL": "C",
}
# Upstream's own attributes must not change a byte on the way in or out.
_ATTRIBUTES = "* -text !eol !filter !ident !working-tree-encoding merge\n"
_MODE_LINK, _MODE_PLAIN, _MODE_PROGRAM = "120000", "100644", "100755"

Contents = Mapping[str, bytes | None]


def patch_ref(index: int) -> str:
    """Return the ref of the series after `index` patches; 0 is old upstream."""
    return f"patch-{index}"


@dataclass(frozen=True)
class Repo:
    """A git repository with a work tree at `path`."""

    path: Path

    def git(self, *arguments: str, check: bool = True, stdin: bytes = b"") -> Ended:
        """Run git here.

        Raises:
            ToolError: git is missing, or `check` is set and it failed.
        """
        settings = [
            word for item in _SETTINGS.items() for word in ("-c", "=".join(item))
        ]
        foreign = {name for name in os.environ if name.startswith("GIT_")}
        environment = {k: v for k, v in os.environ.items() if k not in foreign}
        run = capture(
            git(self.path, *settings, *arguments),
            stdin=stdin,
            env={**environment, **_ENVIRONMENT},
        )
        if check and run.status:
            raise ToolError(
                f"{self.path}: git {arguments[0]} failed: {run.tail}; start again with "
                "tools/rebase.sh abort"
            )
        return run

    def commit_of(self, name: str) -> str:
        """Return the full hash of a commit."""
        return self.git("rev-parse", "--verify", f"{name}^{{commit}}").text.strip()

    def read(self, commit: str, path: str) -> bytes | None:
        """Return a file of a commit, None if it is not there or not a file."""
        if self.mode(commit, path) not in (_MODE_PLAIN, _MODE_PROGRAM):
            return None
        return self.git("cat-file", "blob", f"{commit}:{path}").output

    def link(self, commit: str, path: str) -> str | None:
        """Return where a symbolic link of a commit points to, None if it is none."""
        if self.mode(commit, path) != _MODE_LINK:
            return None
        return self.git("cat-file", "blob", f"{commit}:{path}").text

    def mode(self, commit: str, path: str) -> str:
        """Return git's mode of a path, "" if it is not there."""
        line = self.git("ls-tree", "-z", commit, "--", path).text
        return line.split(" ", 1)[0]

    def python_files(self, commit: str) -> list[str]:
        """Return every Python file of a commit."""
        listing = self.git("ls-tree", "-rz", "--name-only", commit).text
        return [path for path in listing.split("\0") if path.endswith(".py")]

    def unmerged(self) -> list[str]:
        """Return the paths that a stopped rebase left unmerged."""
        said = self.git("diff", "--name-only", "-z", "--diff-filter=U").text
        return [path for path in said.split("\0") if path]

    def reset(self, commit: str) -> None:
        """Drop what an interrupted run left and check `commit` out."""
        git = self.path / ".git"
        for name in ("rebase-merge", "rebase-apply", "index.lock", "HEAD.lock"):
            remove_tree(git / name)
        for name in ("CHERRY_PICK_HEAD", "REBASE_HEAD", "MERGE_MSG", "AUTO_MERGE"):
            (git / name).unlink(missing_ok=True)
        self.git("checkout", "-q", "--force", "--detach", commit)
        self.git("reset", "-q", "--hard", commit)
        self.git("clean", "-qfdx")

    def write(self, contents: Contents) -> None:
        """Write files into the work tree (None deletes) and stage them."""
        for path, content in contents.items():
            file = self.path / path
            if file.is_symlink():
                file.unlink()
            if content is None:
                file.unlink(missing_ok=True)
            else:
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(content)
        if contents:
            self.git("add", "--all", "--force", "--", *contents)

    def commit(self, message: str) -> str:
        """Commit what is staged, also if it is nothing; return the commit."""
        self.git("commit", "-q", "--allow-empty", "-m", message)
        return self.commit_of("HEAD")


def build_repo(
    path: Path,
    folder: str,
    old: Path,
    new: Path,
    series: Series,
    labels: tuple[str, str],
) -> Repo:
    """Make the repository at `path`: `folder` of both trees, one commit a patch.

    Args:
        path: Where; must not exist. It appears complete or not at all.
        folder: The package folder that is taken from the trees.
        old: Pristine tree that the series was made for.
        new: Pristine tree to move it to.
        series: The series.
        labels: Names of the two releases, for commit messages.

    Raises:
        ToolError: the series does not apply to `old`.
    """
    partial = path.with_name(f".{path.name}.partial")
    remove_tree(partial)
    partial.mkdir(parents=True)
    repo = Repo(partial)
    repo.git("init", "-q")
    (partial / ".git" / "info" / "attributes").write_text(_ATTRIBUTES)
    stream = b"".join(_stream(folder, old, new, series, labels))
    repo.git("fast-import", "--quiet", stdin=stream)
    repo.reset(NEW)
    partial.rename(path)
    return Repo(path)


def _stream(
    folder: str, old: Path, new: Path, series: Series, labels: tuple[str, str]
) -> Iterator[bytes]:
    yield _commit(OLD, labels[0], "")
    yield from _tree(old, folder)
    yield f"reset refs/heads/{patch_ref(0)}\nfrom refs/heads/{OLD}\n".encode()
    for index, (patch, contents) in enumerate(patched_steps(series, old), 1):
        yield _commit(patch_ref(index), patch.name, patch_ref(index - 1))
        for file in patch.files:
            content = contents[file.path]
            if content is None:
                yield f"D {file.path}\n".encode()
            else:
                yield _file(file.path, content, _mode(old / file.path))
    yield _commit(NEW, labels[1], OLD)
    yield b"deleteall\n"
    yield from _tree(new, folder)


def _commit(branch: str, message: str, parent: str) -> bytes:
    text = message.encode()
    start = f"from refs/heads/{parent}\n" if parent else ""
    who = "rebase <rebase@localhost> 1700000000 +0000"
    return (
        f"commit refs/heads/{branch}\ncommitter {who}\ndata {len(text)}\n".encode()
        + text
        + f"\n{start}".encode()
    )


def _tree(tree: Path, folder: str) -> Iterator[bytes]:
    for path in sorted((tree / folder).rglob("*")):
        name = path.relative_to(tree).as_posix()
        if path.is_symlink():
            yield _file(name, str(path.readlink()).encode(), _MODE_LINK)
        elif path.is_file():
            yield _file(name, path.read_bytes(), _mode(path))


def _file(path: str, content: bytes, mode: str) -> bytes:
    quoted = path.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    start = f'M {mode} inline "{quoted}"\ndata {len(content)}\n'
    return start.encode() + content + b"\n"


def _mode(path: Path) -> str:
    program = path.is_file() and path.stat().st_mode & stat.S_IXUSR
    return _MODE_PROGRAM if program else _MODE_PLAIN
