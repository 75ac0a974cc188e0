"""A release: the same bytes wherever it is made, all of it or nothing, and it works."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.release import make
from balance_tools.run import listed_by_git
from conftest import ROOT, VERSION
from environments import Environment
from try_out import try_out

REFERENCE_ONLY = """
from pathlib import Path
from balance_tools.distribution import Choice
from balance_tools.paths import Paths
from balance_tools.release import make
make.ALL = [Choice()]  # the others take minutes
release = make.plan_release(Paths(Path.cwd()), trial=True)
print(make.make_release(release, verify=False))
"""
COMMITTER = {
    f"GIT_{who}_{what}": value
    for who in ("AUTHOR", "COMMITTER")
    for what, value in (
        ("NAME", "A"),
        ("EMAIL", "a@example.org"),
        ("DATE", "2026-01-31T12:00:00Z"),
    )
}


def copy_repository(target: Path, umask: int, *, backwards: bool = False) -> Path:
    """A repository of one commit with the sources as they are now."""
    target.mkdir(parents=True)
    names = listed_by_git(ROOT, "--cached", "--others", "--exclude-standard")
    names = [name for name in names if (ROOT / name).is_file()]
    for name in sorted(names, reverse=backwards):
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, path)
        path.chmod((0o777 if os.access(ROOT / name, os.X_OK) else 0o666) & ~umask)
    link_downloads(target)
    git = ["git", "-C", str(target)]
    for command in (
        ["init", "--quiet"],
        ["add", "--all"],
        ["commit", "--quiet", "--message", "release"],
    ):
        subprocess.run([*git, *command], env=os.environ | COMMITTER, check=True)
    return target


def link_downloads(root: Path) -> None:
    (root / "build").mkdir()
    for name in ("cache", "pristine"):
        (root / "build" / name).symlink_to(ROOT / "build" / name)


def run_in(root: Path, *arguments: str, umask: int = 0o022, **variables: str) -> str:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=root,
        env=os.environ | {"PYTHONPATH": f"{root / 'tools'}:{root}"} | variables,
        umask=umask,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    ).stdout.strip()


@pytest.fixture(scope="module")
def release(reference_wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cheaper part of a release: the reference wheel and what is not a wheel."""
    assert reference_wheel.is_file()  # the downloads are there
    root = copy_repository(tmp_path_factory.mktemp("one") / "repo", 0o022)
    return Path(run_in(root, "-c", REFERENCE_ONLY, TZ="UTC", LC_ALL="C"))


def test_elsewhere_it_is_the_same(release: Path, tmp_path: Path) -> None:
    folder = tmp_path / "a longer name"
    other = copy_repository(folder / "repo", 0o077, backwards=True)
    made = run_in(
        other,
        *("-c", REFERENCE_ONLY),
        umask=0o077,
        TZ="Asia/Tokyo",
        LC_ALL="C.UTF-8",
        PYTHONHASHSEED="1",
    )
    sums = release / make.SUMS
    assert (Path(made) / make.SUMS).read_text() == sums.read_text()
    listed = {line.split("  ")[1] for line in sums.read_text().splitlines()}
    assert listed | {make.SUMS} == {path.name for path in release.iterdir()}
    subprocess.run(
        ["sha256sum", "--check", "--quiet", make.SUMS], cwd=release, check=True
    )


@pytest.fixture
def planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> make.Release:
    """A release whose build writes one file."""

    def complete(folder: Path) -> None:
        (folder / make.SUMS).write_text("sums")

    monkeypatch.setattr(make, "build_wheels", lambda paths, choices, folder: None)
    monkeypatch.setattr(make, "complete", complete)
    monkeypatch.setattr(make, "inspect_wheels", lambda paths, folder: None)
    return make.Release(Paths(tmp_path), "1.0", trial=False)


@pytest.mark.parametrize("error", [ToolError, KeyboardInterrupt])
@pytest.mark.parametrize("part", ["build_wheels", "inspect_wheels"])
def test_a_failure_leaves_no_folder(
    planned: make.Release,
    monkeypatch: pytest.MonkeyPatch,
    part: str,
    error: type[BaseException],
) -> None:
    def fail(*arguments: object) -> None:
        folder = arguments[-1]
        assert isinstance(folder, Path)
        (folder / "half").touch()
        raise error

    monkeypatch.setattr(make, part, fail)
    with pytest.raises(error):
        make.make_release(planned)
    assert list(planned.paths.dist.iterdir()) == []


def test_a_release_is_made_once(planned: make.Release) -> None:
    folder = make.make_release(planned)
    assert [path.name for path in planned.paths.dist.iterdir()] == [folder.name]
    assert make.make_release(planned) == folder  # the same bytes
    (folder / make.SUMS).write_text("others")
    with pytest.raises(ToolError, match=r"release-1\.0: expected no release here, or"):
        make.make_release(planned)
    assert (folder / make.SUMS).read_text() == "others"


def refusal(root: Path) -> str:
    with pytest.raises(ToolError) as caught:
        make.plan_release(Paths(root), trial=False)
    return str(caught.value)


def test_what_is_checked_before_the_build(tmp_path: Path) -> None:
    root = copy_repository(tmp_path / "repo", 0o022)
    changelog = root / "CHANGELOG.md"
    changelog.write_text("## Unreleased\n\n- x\n")
    assert f"CHANGELOG.md: expected a section '## {VERSION} (" in refusal(root)
    changelog.write_text(f"## {VERSION} (2026-01-31)\n\n- x\n")
    assert "expected no changes against commit" in refusal(root)
    git = ["git", "-C", str(root)]
    subprocess.run([*git, "tag", f"v{VERSION}"], check=True)
    commit = [*git, "commit", "--quiet", "--all", "--message", "more"]
    subprocess.run(commit, env=os.environ | COMMITTER, check=True)
    assert f"expected a version without a tag, found v{VERSION} on" in refusal(root)
    subprocess.run([*git, "tag", "--force", f"v{VERSION}"], check=True)
    assert make.plan_release(Paths(root), trial=False).version == VERSION
    shutil.rmtree(root / ".git")
    assert "expected a git checkout" in refusal(root)


@pytest.fixture
def short() -> Iterator[Path]:
    """A folder with a path that is short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="try-") as folder:
        yield Path(folder) / "m"


def test_the_reference_wheel_serves_and_leaves_nothing(
    reference_wheel: Path, installed: Environment, short: Path
) -> None:
    """With nothing but Python: no other program is found, and home is empty."""
    left = try_out(reference_wheel, short, installed.packages)
    assert not list((short / "env").rglob("*vllm*"))
    # Upstream's cache and its sockets, as docs/install.md says.
    assert [f for f in left if not f.startswith(("home/.cache/vllm/", "tmp/"))] == []
