"""A hook that stops is traced to the commit of upstream that took its place."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rebase_samples import ENGINE, UPSTREAM, make_root, make_sdist, rebase, replaced

COUNTED = replaced(
    ENGINE, (b"executed = self.step()", b"executed = self.step(self.wave)")
)
FINISHED = replaced(
    COUNTED,
    (
        b"            self.active = self.sync(\n                executed,\n"
        b"            )\n\n"
        b"            if not self.active:\n                self.wave += 1\n",
        b"            self.finish(executed)\n",
    ),
)
DRAINED = replaced(FINISHED, (b"self.running.clear()", b"self.running = []"))
TITLE = "Finish in one call (#17)"
HISTORY: tuple[tuple[bytes | None, str, str], ...] = (
    (ENGINE, "Add the engine", "v1.0"),
    (COUNTED, "Count waves", ""),
    (FINISHED, TITLE, ""),
    (DRAINED, "Drain into a new list", "v2.0"),
    (None, "Delete the engine", "v3.0"),
)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "clone"

    def git(*arguments: str) -> None:
        identity = ("-c", "user.name=t", "-c", "user.email=t@example.invalid")
        command = ["git", *identity, *arguments]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)

    (folder / "vllm").mkdir(parents=True)
    git("init", "-q")
    file = folder / "vllm" / "engine.py"
    for content, title, tag in HISTORY:
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        git("add", "--all")
        git("commit", "-qm", title)
        if tag:
            git("tag", tag)
    return folder


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path)


def patches(root: Path, name: str) -> dict[str, Any]:
    report = root / "build" / "rebase" / name / "report.json"
    return {one["name"]: one for one in json.loads(report.read_text())["patches"]}


def sdist(folder: Path, version: str, engine: bytes | None) -> str:
    files = {**UPSTREAM, "vllm/engine.py": engine}
    kept = {path: content for path, content in files.items() if content is not None}
    return str(make_sdist(folder, f"vllm-{version}", kept))


@pytest.mark.parametrize("options", [(), ("--dry-run",)])
def test_the_commit_that_took_the_place_is_named(
    options: tuple[str, ...],
    root: Path,
    tmp_path: Path,
    clone: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("--sdist", sdist(tmp_path, "2.0", DRAINED), "--upstream-git", str(clone))
    assert rebase(root, *words, *options) == 5
    found = patches(root, "2.0.dry-run" if options else "2.0")
    notes = [hook["note"] for hook in found["exchange.patch"]["hooks"]]
    assert [TITLE in note for note in notes] == [True]
    others = [hook["note"] for hook in found["gate.patch"]["hooks"]]
    assert not any("; by " in note for note in others)
    if not options:
        assert f" {TITLE}\n" in capsys.readouterr().err


def test_a_deleted_file_is_traced_too(root: Path, tmp_path: Path, clone: Path) -> None:
    words = ("--sdist", sdist(tmp_path, "3.0", None), "--upstream-git", str(clone))
    assert rebase(root, *words) == 6
    said = json.dumps(patches(root, "3.0")["gate.patch"])
    assert "Delete the engine" in said
    assert TITLE not in said


def test_without_a_clone_nothing_changes(root: Path, tmp_path: Path) -> None:
    assert rebase(root, "--sdist", sdist(tmp_path, "2.0", DRAINED)) == 5
    (hook,) = patches(root, "2.0")["exchange.patch"]["hooks"]
    assert "; by " not in hook["note"]


def test_a_clone_without_the_tag_is_refused_and_the_rebase_goes_on_without(
    root: Path, tmp_path: Path, clone: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    subprocess.run(["git", "tag", "-d", "v2.0"], cwd=clone, check=True)
    words = ("--sdist", sdist(tmp_path, "2.0", DRAINED), "--upstream-git", str(clone))
    assert rebase(root, *words) == 1
    assert "the tag v2.0, found none" in capsys.readouterr().err
    assert rebase(root, "--status") == 5
