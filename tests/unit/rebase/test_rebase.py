"""A rebase moves the series, or stops at the place where a person must decide."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from balance_tools.paths import Paths
from balance_tools.rebase.command import VERBS
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine
from index_samples import SampleIndex
from rebase_samples import (
    ASCEND,
    ENGINE,
    UPSTREAM,
    Files,
    make_root,
    make_sdist,
    misplaced,
    patched_engine,
    rebase,
    replaced,
    tracked,
    write_tree,
)

NEWER = replaced(
    ENGINE,
    (b"class Engine(Base):\n", b"LIMIT = 8\n\n\nclass Engine(Base):\n"),
    (b"if len(self.running) == self.limit:", b"if len(self.running) >= self.limit:"),
    (
        b"            # Admit it.\n",
        b"            self.seen += 1\n            # Admit it.\n",
    ),
)
# Upstream rewrote the statement that a hook stands behind, and the one after it.
CONFLICTING = replaced(
    ENGINE,
    (
        b"            self.active = self.sync(\n                executed,\n"
        b"            )\n\n"
        b"            if not self.active:\n                self.wave += 1\n",
        b"            self.finish(executed)\n",
    ),
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return make_root(tmp_path)


def sdist(folder: Path, version: str, engine: bytes, **more: bytes) -> Path:
    files: Files = {**UPSTREAM, "vllm/engine.py": engine, **more}
    return make_sdist(folder, f"vllm-{version}", files)


def report(root: Path, name: str) -> Any:
    return json.loads((root / "build" / "rebase" / name / "report.json").read_text())


def statuses(root: Path, name: str) -> dict[str, str]:
    return {p["name"]: p["status"] for p in report(root, name)["patches"]}


def test_series_and_lock_move_together(root: Path, tmp_path: Path) -> None:
    archive = sdist(tmp_path, "2.0", NEWER)
    assert rebase(root, "--sdist", str(archive)) == 0
    lock = load_lock(root / "upstream.toml")
    assert lock.vllm.filename == "vllm-2.0.tar.gz"
    assert lock.vllm_ascend.version == "1.0"
    tree = ensure_pristine(lock.vllm, Paths(root))
    assert misplaced(patched_engine(root / "patches/vllm", tree)) == []
    assert statuses(root, "2.0") == {
        "gate.patch": "context-only",
        "hold.patch": "context-only",
        "exchange.patch": "context-only",
        "defer.patch": "untouched",
    }


def test_what_was_looked_up_once_needs_no_network(
    root: Path, tmp_path: Path, index: SampleIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = sdist(tmp_path, "2.0", NEWER)
    index.add(archive.name, archive.read_bytes())
    index.add("vllm_ascend-1.0.tar.gz", b"never read")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_INDEX_URL", index.url)
    monkeypatch.setenv("PIP_RETRIES", "0")
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name, raising=False)
    assert rebase(root, "2.0", "--dry-run") == 0
    index.stop()
    assert rebase(root, "2.0") == 0
    assert load_lock(root / "upstream.toml").vllm.version == "2.0"


def test_the_report_has_the_drift_for_machines_too(root: Path, tmp_path: Path) -> None:
    archive = sdist(tmp_path, "2.0", NEWER)
    assert rebase(root, "--sdist", str(archive)) == 0
    drift = report(root, "2.0")["drift"]
    rows = {row["subject"]["symbol"]: row for row in drift["packages"]["vllm"]}
    schedule = rows["vllm.engine.Engine.schedule"]
    assert schedule["change"] == {"added": 2, "removed": 1}
    assert schedule["subject"]["how"] == "touched"
    assert schedule["subject"]["patches"] == ["hold.patch"]
    assert drift["replaced"] == []


def test_there_and_back_gives_the_same_bytes(root: Path, tmp_path: Path) -> None:
    before = tracked(root)
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", NEWER))) == 0
    assert tracked(root) != before
    assert rebase(root, "--sdist", str(sdist(tmp_path, "1.0", ENGINE))) == 0
    after = tracked(root)
    before.pop("upstream.toml"), after.pop("upstream.toml")
    assert after == before


def test_the_pinned_version_is_a_no_op(root: Path) -> None:
    before = tracked(root)
    times = {p: p.stat().st_mtime_ns for p in (root / "patches").rglob("*")}
    assert rebase(root, "1.0") == 0
    assert tracked(root) == before
    assert {p: p.stat().st_mtime_ns for p in (root / "patches").rglob("*")} == times
    assert set(statuses(root, "1.0").values()) == {"untouched"}


def test_a_dry_run_changes_nothing_and_judges_every_patch(
    root: Path, tmp_path: Path
) -> None:
    before = tracked(root)
    archive = sdist(tmp_path, "2.0", CONFLICTING)
    assert rebase(root, "--sdist", str(archive), "--dry-run") == 5
    assert tracked(root) == before
    found = statuses(root, "2.0.dry-run")
    assert found["exchange.patch"] == "conflict"
    assert found["defer.patch"] == "untouched"
    assert rebase(root, "status") == 0  # nothing is in progress


def test_a_folder_gives_a_series_but_no_lock(root: Path, tmp_path: Path) -> None:
    before = tracked(root)
    tree = write_tree(tmp_path / "fork", {**UPSTREAM, "vllm/engine.py": NEWER})
    assert rebase(root, "fork", "--sdist", str(tree)) == 0
    assert tracked(root) == before
    series = root / "build/rebase/fork/final/patches/vllm"
    assert misplaced(patched_engine(series, tree)) == []


def test_a_conflict_names_function_and_change_and_holds_both_sides(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = tracked(root)
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", CONFLICTING))) == 5
    said = capsys.readouterr().err
    assert "exchange.patch: conflict" in said
    assert "Engine.loop lost" in said
    file = root / "build/rebase/2.0/vllm/vllm/engine.py"
    text = file.read_text()
    assert f"edit {file}" in said
    assert "<<<<<<< vllm 2.0: neither `self.active = self.sync(executed)`" in text
    assert "||||||| vllm 1.0\n" in text
    assert ">>>>>>> exchange.patch\n" in text
    assert "self.finish(executed)" in text
    assert tracked(root) == before


def test_continue_needs_the_conflict_resolved(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rebase(root, "--sdist", str(sdist(tmp_path, "2.0", CONFLICTING)))
    file = root / "build/rebase/2.0/vllm/vllm/engine.py"
    assert rebase(root, "continue") == 1
    assert "a conflict is left" in capsys.readouterr().err
    lines = file.read_text().splitlines(keepends=True)
    start = next(i for i, line in enumerate(lines) if line.startswith("<<<<<<<"))
    end = next(i for i, line in enumerate(lines) if line.startswith(">>>>>>>"))
    clean = "".join(lines[:start] + lines[end + 1 :])
    file.write_text(clean + "def broken(:\n")
    assert rebase(root, "continue") == 1
    assert "not valid Python" in capsys.readouterr().err
    hook = "            self.finish(executed)\n"
    file.write_text(
        clean.replace(hook, f"{hook}            self.gate.exchange(True)\n")
    )
    assert rebase(root, "continue") == 0
    assert statuses(root, "2.0")["exchange.patch"] == "content-changed"
    (patch,) = [
        p for p in report(root, "2.0")["patches"] if p["name"] == "exchange.patch"
    ]
    assert [(h["how"], h["scope"]) for h in patch["hooks"]] == [("hand", "Engine.loop")]
    text = (root / "patches/vllm/exchange.patch").read_text()
    assert "+            self.gate.exchange(True)\n" in text


def test_skip_leaves_the_patch_out(root: Path, tmp_path: Path) -> None:
    rebase(root, "--sdist", str(sdist(tmp_path, "2.0", CONFLICTING)))
    assert rebase(root, "skip") == 0
    assert (root / "patches/vllm/series").read_text() == "gate.patch\nhold.patch\n"
    assert not (root / "patches/vllm/exchange.patch").exists()


def test_abort_goes_back(root: Path, tmp_path: Path) -> None:
    before = tracked(root)
    rebase(root, "--sdist", str(sdist(tmp_path, "2.0", CONFLICTING)))
    assert rebase(root, "status") == 5
    assert rebase(root, "abort") == 0
    assert tracked(root) == before
    assert not (root / "build/rebase/2.0").exists()


def test_one_bump_at_a_time(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = str(sdist(tmp_path, "2.0", CONFLICTING))
    assert rebase(root, "--sdist", archive) == 5
    assert rebase(root, "--sdist", archive) == 1
    assert "found the one to 2.0; finish it with" in capsys.readouterr().err
    assert rebase(root, "--sdist", archive, "--dry-run") == 5


@pytest.mark.parametrize("verb", ["continue", "skip", "abort"])
def test_without_a_bump_there_is_nothing_to_go_on_with(
    verb: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rebase(root, verb) == 1
    assert "expected a bump in progress, found none" in capsys.readouterr().err


def test_the_script_knows_the_verbs_and_takes_all_else_for_a_bump() -> None:
    script = (Path(__file__).parents[3] / "tools" / "rebase.sh").read_text()
    (verbs,) = [line for line in script.splitlines() if line.endswith(") ;;")]
    words = {word.strip(" ')") for word in verbs.removesuffix(") ;;").split("|")}
    assert words == {*VERBS, "-h", "--help", ""}
    assert '*) set -- bump "$@" ;;' in script


@pytest.mark.parametrize("version", ["../1", "", "1 0"])
def test_what_is_no_version_is_refused(
    version: str, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rebase(root, "bump", version) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: version: expected a release such as 0.30.0")


def test_a_series_that_does_not_fit_its_own_lock_is_refused(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    patch = root / "patches/vllm/hold.patch"
    patch.write_text(
        patch.read_text().replace("             # Admit", "             # Take")
    )
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", NEWER))) == 7
    assert "hold.patch: vllm/engine.py, hunk 1, line" in capsys.readouterr().err
    assert statuses(root, "2.0") == {"hold.patch": "broken"}
    assert rebase(root, "status") == 0  # nothing is in progress


def test_the_other_package_alone_can_move(root: Path, tmp_path: Path) -> None:
    plugin = b"# Newer.\n" + ASCEND["vllm_ascend/plugin.py"]
    files = {**ASCEND, "vllm_ascend/plugin.py": plugin}
    archive = make_sdist(tmp_path, "vllm_ascend-2.0", files)
    assert rebase(root, "--ascend-sdist", str(archive)) == 0
    lock = load_lock(root / "upstream.toml")
    assert (lock.vllm.version, lock.vllm_ascend.version) == ("1.0", "2.0")
    assert statuses(root, "2.0")["defer.patch"] == "context-only"
