"""A further supported release keeps only what differs, and proves what it derives."""

from __future__ import annotations

from pathlib import Path

import pytest

from balance_tools.paths import Paths
from balance_tools.rebase.derive import derive
from balance_tools.rebase.supported_release import SupportedRelease
from rebase_samples import (
    ENGINE,
    UPSTREAM,
    make_root,
    make_sdist,
    misplaced,
    rebase,
    replaced,
    tracked,
)

NEWER = replaced(
    ENGINE,
    (b"class Engine(Base):\n", b"LIMIT = 8\n\n\nclass Engine(Base):\n"),
    (
        b"        self.running.clear()\n",
        b"        self.running.clear()\n        self.bound = True\n",
    ),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A repository with the release `next`, whose hold.patch was amended by hand."""
    root = make_root(tmp_path)
    files = {**UPSTREAM, "vllm/engine.py": NEWER}
    archive = str(make_sdist(tmp_path, "vllm-2.0", files))
    options = ["--line", "next", "--stop-after", "hold.patch"]
    assert rebase(root, "--sdist", archive, *options) == 0
    file = root / "build/rebase/2.0/vllm/vllm/engine.py"
    edited = file.read_bytes().replace(
        b"        self.bound = True\n",
        b"        self.bound = True\n        self.gate.drain()\n",
    )
    file.write_bytes(edited)
    assert rebase(root, "--continue") == 0
    return root


def test_the_pin_is_left_alone(root: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert tracked(root) == tracked(make_root(tmp_path / "other"))


def test_it_holds_lock_hashes_and_the_amended_patch_only(
    root: Path,
) -> None:
    folder = root / "lines" / "next"
    files = [p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()]
    assert sorted(files) == ["patches/vllm/hold.patch", "series.toml", "upstream.toml"]
    patch = (folder / "patches/vllm/hold.patch").read_text()
    assert "+        self.gate.drain()\n" in patch
    assert "+            if self.gate.holds(request):\n" in patch


def test_the_rest_is_derived_and_proven(root: Path) -> None:
    paths = Paths(root)
    work, _ = derive(paths, SupportedRelease.find(paths, "next"))
    assert (work.final_series("vllm") / "series").read_text().split() == [
        "gate.patch",
        "hold.patch",
        "exchange.patch",
    ]
    repo = work.repo("vllm") / "vllm" / "engine.py"
    assert misplaced(repo.read_bytes()) == []
    assert b"self.gate.drain()" in repo.read_bytes()


def edit(patch: Path, old: str, new: str) -> None:
    text = patch.read_text()
    assert old in text
    patch.write_text(text.replace(old, new))


def test_another_pin_is_noticed_and_renewed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    gate = root / "patches/vllm/gate.patch"
    edit(gate, "create_gate(config)", "create_gate(config, 1)")
    assert rebase(root, "--checkout-line", "next") == 1
    said = capsys.readouterr().err
    assert "lines/next/series.toml: expected the vllm series" in said
    assert "renew it with tools/rebase.sh --renew-line next" in said
    assert rebase(root, "--renew-line", "next") == 0
    assert "lines/next/series.toml: vllm series " in capsys.readouterr().out
    derive(Paths(root), SupportedRelease.find(Paths(root), "next"))
    assert rebase(root, "--renew-line", "next") == 0
    assert "nothing to renew" in capsys.readouterr().out


def test_a_line_is_not_renewed_when_a_hook_was_not_placed(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (root / "lines/next/series.toml").read_bytes()
    hook = "+            self.gate.exchange(self.active)\n"
    # Upstream's new release has this statement itself.
    edit(root / "patches/vllm/exchange.patch", hook, "+            self.bound = True\n")
    assert rebase(root, "--renew-line", "next") == 1
    said = capsys.readouterr().err
    assert "exchange.patch does not follow from the pin any more" in said
    assert "tools/rebase.sh 2.0 --ascend 1.0 --line next" in said
    assert (root / "lines/next/series.toml").read_bytes() == before


def test_a_patch_of_the_line_must_follow_the_one_of_the_pin(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change = ("gate.holds(request)", "gate.holds(request, 1)")
    edit(root / "patches/vllm/hold.patch", *change)
    for option in ("--checkout-line", "--renew-line"):
        assert rebase(root, option, "next") == 1
        said = capsys.readouterr().err
        assert "lines/next/patches/vllm/hold.patch: expected it to follow" in said
    edit(root / "lines/next/patches/vllm/hold.patch", *change)
    assert rebase(root, "--renew-line", "next") == 0
    assert rebase(root, "--checkout-line", "next") == 1
    assert "expected a git checkout" in capsys.readouterr().err


def test_a_patch_that_the_pin_no_longer_has_is_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = root / "lines/next/patches/vllm"
    (own / "hold.patch").rename(own / "other.patch")
    assert rebase(root, "--renew-line", "next") == 1
    assert "patches/vllm/series: expected other.patch" in capsys.readouterr().err


def test_a_line_that_is_not_there_is_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rebase(root, "--checkout-line", "none") == 1
    assert (
        "lines/none: expected a supported release, found none; there are next"
        in capsys.readouterr().err
    )
