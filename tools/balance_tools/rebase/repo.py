"""The two-tree git repository: old upstream with the series on it, and new upstream.

Git runs with none of the user's settings, so that the same input gives the same merge
on every machine.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from balance_tools.errors import ToolError
from balance_tools.files import remove_tree
from balance_tools.run import Ended, capture, git
from balance_tools.series.apply import Series, patched_steps

NEW = "new-upstream"

_SETTINGS = {
    "core.compression": "0",
    "core.fsync": "none",
    "diff.algorithm": "histogram",
    "gc.auto": "0",
    "init.defaultBranch": "result",
    "merge.conflictStyle": "diff3",
    "merge.renames": "false",
    "user.email": "rebase@localhost",
    "user.name": "rebase",
}
_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_EDITOR": "true",
    "LC_ALL": "C",
}
# Upstream's own attributes must not change a byte on the way in or out.
_ATTRIBUTES = "* -text !eol !filter !ident !working-tree-encoding merge\n"
_LINK = "120000 "  # the mode that git lists a symbolic link with

Contents = Mapping[str, bytes | None]


def patch_ref(index: int) -> str:
    """Return the ref of the series after `index` patches; 0 is old upstream."""
    return f"patch-{index}"


@dataclass(frozen=True)
class Repo:
    """A git repository with a work tree at `path`."""

    path: Path

    def git(self, *arguments: str, check: bool = True) -> Ended:
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
        link = self.git("ls-tree", "-z", commit, "--", path).text.startswith(_LINK)
        said = self.git("cat-file", "blob", f"{commit}:{path}", check=False)
        return None if link or said.status else said.output

    def link(self, commit: str, path: str) -> str | None:
        """Return where a symbolic link of a commit points to, None if it is none."""
        if not self.git("ls-tree", "-z", commit, "--", path).text.startswith(_LINK):
            return None
        return self.git("cat-file", "blob", f"{commit}:{path}").text

    def python_files(self, commit: str) -> list[str]:
        """Return every Python file of a commit."""
        listing = self.git("ls-tree", "-rz", "--name-only", commit).text
        return [path for path in listing.split("\0") if path.endswith(".py")]

    def unmerged(self) -> list[str]:
        """Return the paths that a stopped rebase left unmerged."""
        return self.changed("--diff-filter=U")

    def changed(self, *what: str) -> list[str]:
        """Return the paths that `git diff` names."""
        said = self.git("diff", "--name-only", "-z", "--no-renames", *what).text
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
    # The trees are read where they lie.
    repo.git(f"--work-tree={old}", "add", "--force", "--", folder)
    repo.commit(labels[0])
    repo.git("reset", "-q", "--hard")
    repo.git("branch", patch_ref(0))
    for index, (patch, contents) in enumerate(patched_steps(series, old), 1):
        repo.write({file.path: contents[file.path] for file in patch.files})
        repo.commit(patch.name)
        repo.git("branch", patch_ref(index))
    repo.git("checkout", "-q", "-b", NEW, patch_ref(0))
    repo.git(f"--work-tree={new}", "add", "--all", "--force", "--", folder)
    repo.commit(labels[1])
    repo.reset(NEW)
    partial.rename(path)
    return Repo(path)
