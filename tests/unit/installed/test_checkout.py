"""A wheel's record against a git checkout: whatever differs is named, nothing else."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from vllm_balance.build_info import BuildInfo
from vllm_balance.checkout import NotACheckoutError, differences
from vllm_balance.fingerprint import PACKAGES, lock_sha256, series_sha256

OWN = {
    "vllm/balance.py": "x = 1\n",
    "vllm_balance/cli.py": "y = 1\n",
}
FILES = OWN | {
    "README.md": "read\n",
    "upstream.toml": "[vllm]\n",
    "patches/vllm/series": "one.patch\ntwo.patch\n",
    "patches/vllm/one.patch": "one\n",
    "patches/vllm/two.patch": "two\n",
    "patches/vllm_ascend/series": "",
    "vllm_balance/reference/left_out.py": "z = 1\n",
}


def git(root: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org"]
    return subprocess.run(
        ["git", "-C", str(root), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout of one commit."""
    for name, text in FILES.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    git(tmp_path, "init", "--quiet")
    commit_all(tmp_path)
    return tmp_path


def commit_all(root: Path) -> None:
    git(root, "add", "--all")
    git(root, "commit", "--quiet", "--allow-empty", "--message", "a commit")


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def built(checkout: Path) -> BuildInfo:
    """What a wheel says that was built from it."""
    known = {
        "wheel": "vllm-1.whl",
        "commit": git(checkout, "rev-parse", "HEAD"),
        "lock_sha256": lock_sha256(checkout),
        "series_sha256": {name: series_sha256(checkout, name) for name in PACKAGES},
        "own_files": {name: sha256(text) for name, text in OWN.items()},
        "left_out": ["vllm_balance/reference"],
    }
    return BuildInfo(**dict.fromkeys(BuildInfo.__annotations__) | known)


def named(built: BuildInfo, checkout: Path) -> list[str]:
    """The files that the sentences are about."""
    sentences = differences(built, checkout)
    return [
        str(Path(sentence.partition(": ")[0]).relative_to(checkout))
        for sentence in sentences
    ]


def test_its_own_checkout(built: BuildInfo, checkout: Path) -> None:
    assert named(built, checkout) == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"upstream.toml": "[vllm]\n\n"}, "upstream.toml"),
        ({"patches/vllm/two.patch": "2\n"}, "patches/vllm/series"),
        ({"patches/vllm/series": "two.patch\none.patch\n"}, "patches/vllm/series"),
        ({"patches/vllm_ascend/series": "x\n"} | {"patches/vllm_ascend/x": "x\n"},
         "patches/vllm_ascend/series"),
        ({"vllm/balance.py": "x = 2\n"}, "vllm/balance.py"),
        ({"vllm/more.py": "x = 2\n"}, "vllm/more.py"),
    ],
)  # fmt: skip
def test_each_change(
    built: BuildInfo, checkout: Path, changed: Mapping[str, str], expected: str
) -> None:
    for name, text in changed.items():
        (checkout / name).write_text(text)
    git(checkout, "add", "--all")
    assert named(built, checkout) == [expected]
    commit_all(checkout)
    assert named(built, checkout) == [".", expected]


def test_another_commit_with_the_same_files(built: BuildInfo, checkout: Path) -> None:
    commit_all(checkout)
    (sentence,) = differences(built, checkout)
    assert sentence.startswith(f"{checkout}: expected commit {built.commit}, found ")


def test_a_file_that_is_gone(built: BuildInfo, checkout: Path) -> None:
    (checkout / "vllm" / "balance.py").unlink()
    assert named(built, checkout) == ["vllm/balance.py"]


def test_what_is_not_in_the_wheel_may_differ(built: BuildInfo, checkout: Path) -> None:
    for name in ("README.md", "vllm_balance/reference/left_out.py"):
        (checkout / name).write_text("other\n")
    assert named(built, checkout) == []


def test_no_commit_yet(built: BuildInfo, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    git(tmp_path, "init", "--quiet", str(empty))
    with pytest.raises(NotACheckoutError, match="expected git to read it"):
        list(differences(built, empty))


def test_the_hash_of_a_series_depends_on_order_and_bytes_alone(tmp_path: Path) -> None:
    patches = tmp_path / "patches" / "vllm"
    patches.mkdir(parents=True)
    (patches / "gate.patch").write_text("one\n")
    (patches / "exchange.patch").write_text("two\n")

    def listed(series: str) -> str:
        (patches / "series").write_text(series)
        return series_sha256(tmp_path, "vllm")

    before = listed("gate.patch\nexchange.patch\n")
    assert listed("# note\n\ngate.patch  # why\nexchange.patch\n") == before
    assert listed("exchange.patch\ngate.patch\n") != before
    (patches / "gate.patch").write_text("on\n")
    assert listed("gate.patch\nexchange.patch\n") != before
