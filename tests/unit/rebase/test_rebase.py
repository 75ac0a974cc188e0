"""A rebase moves the series, or stops at the place where a person must decide."""

import re
import subprocess
from pathlib import Path

import pytest

from balance_tools.paths import Paths
from balance_tools.run import git
from balance_tools.series.apply import diff_file
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine
from rebase_samples import (
    ASCEND,
    CLOSED,
    ENGINE,
    EXCHANGE,
    OTHER,
    SYNC,
    SYNC_AND_WAVE,
    UPSTREAM,
    WITH_EXCHANGE,
    edit,
    make_sdist,
    misplaced,
    patched_engine,
    rebase,
    replaced,
    report,
    statuses,
    tracked,
    write_tree,
)

NEWER = replaced(
    ENGINE,
    (b"class Engine(Base):\n", b"LIMIT = 8\n\n\nclass Engine(Base):\n"),
    (b"if len(self.running) == self.limit:", b"if len(self.running) >= self.limit:"),
    (b"            # Admit", b"            self.seen += 1\n            # Admit"),
)
ENGINE_PY = "vllm/engine.py"
FINISH = b"            self.finish(executed)\n"
# Upstream rewrote the statement that a hook stands behind, and the one after it.
CONFLICTING = replaced(ENGINE, (SYNC_AND_WAVE, FINISH))


pytestmark = pytest.mark.usefixtures("types_fit")


def sdist(folder: Path, version: str, engine: bytes) -> Path:
    return make_sdist(folder, f"vllm-{version}", {**UPSTREAM, ENGINE_PY: engine})


def placed_engine(root: Path) -> bytes:
    """Release 2.0 with the hooks that need nobody."""
    series = root / "build/rebase/2.0/patches/vllm"
    return patched_engine(series, Paths(root).unpacked("vllm", "2.0"))


def test_series_and_lock_move_together(root, tmp_path, monkeypatch):
    monkeypatch.undo()  # mypy is asked
    before = tracked(root)
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", NEWER))) == 0
    lock = load_lock(root / "upstream.toml")
    assert lock.vllm.filename == "vllm-2.0.tar.gz"
    assert lock.vllm_ascend.version == "1.0"
    assert f"| {OTHER} | low | open | refuse short lists |" in report(root, "2.0")
    tree = ensure_pristine(lock.vllm, Paths(root))
    assert misplaced(patched_engine(root / "patches/vllm", tree)) == []
    assert statuses(root, "2.0") == {
        "gate.patch": "context-only",
        "hold.patch": "context-only",
        "exchange.patch": "context-only",
        "defer.patch": "untouched",
    }
    changed = r"### vllm\.engine\.Engine\.schedule \(hold\.patch\)\n\n```diff\n@@ "
    assert re.search(changed, report(root, "2.0"))
    # There and back gives the same bytes.
    assert tracked(root) != before
    assert rebase(root, "--sdist", str(sdist(tmp_path, "1.0", ENGINE))) == 0
    after = tracked(root)
    before.pop("upstream.toml"), after.pop("upstream.toml")
    assert after == before


def test_the_pinned_version_is_a_no_op(root):
    before = tracked(root)
    assert rebase(root, "1.0") == 0
    assert tracked(root) == before
    assert set(statuses(root, "1.0").values()) == {"untouched"}


def test_who_must_decide_writes_a_patch_of_a_line_and_runs_it_again(
    root, tmp_path, capsys
):
    before = tracked(root)
    archive = str(sdist(tmp_path, "2.0", CONFLICTING))
    for more in ([], ["--line", "next"]):
        assert rebase(root, "--sdist", archive, *more) == 5
    said = capsys.readouterr().err
    assert "patches/vllm/exchange.patch: conflict" in said
    assert "is in Engine.loop any more" in said
    assert "lines/next/patches/vllm/exchange.patch" in said
    assert tracked(root) == before
    found = statuses(root, "2.0")
    assert (found["exchange.patch"], found["defer.patch"]) == ("conflict", "untouched")
    # What a person writes is taken, proven, and kept in the line.
    own = root / "lines/next/patches/vllm/exchange.patch"
    placed = placed_engine(root)
    new = replaced(placed, (FINISH, FINISH + EXCHANGE))
    write_tree(own.parent, {own.name: b"D: x\n\n" + diff_file(ENGINE_PY, placed, new)})
    assert rebase(root, "--sdist", archive, "--line", "next") == 0
    assert statuses(root, "2.0")["exchange.patch"] == "content-changed"
    assert "decided by a person" in report(root, "2.0")
    assert "Adapted-From: " in own.read_text()
    assert rebase(root, "--sdist", archive, "--line", "next") == 0
    assert tracked(root) == before
    # The line becomes the pin, and has no use then.
    assert rebase(root, "--sdist", archive) == 0
    assert EXCHANGE.decode() in (root / "patches/vllm/exchange.patch").read_text()
    assert not (root / "lines/next").exists()


def test_merged_verbatim_is_proposed_and_never_dropped_by_itself(root, tmp_path):
    before = tracked(root)
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", WITH_EXCHANGE))) == 3
    found = statuses(root, "2.0")
    assert found.pop("defer.patch") == "untouched"
    assert set(found.values()) == {"already-upstream"}
    assert tracked(root) == before


def test_line_ends_and_a_byte_order_mark_are_kept(root, tmp_path):
    upstream = b"\xef\xbb\xbf" + ENGINE.replace(b"\n", b"\r\n")
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", upstream))) == 0
    tree = ensure_pristine(load_lock(root / "upstream.toml").vllm, Paths(root))
    patched = patched_engine(root / "patches/vllm", tree)
    assert misplaced(patched) == []
    assert patched.count(b"\n") == patched.count(b"\r\n")
    assert patched.startswith(upstream[:3])


def test_where_a_hook_has_no_clear_place_the_new_file_shows_the_conflict(
    root, tmp_path, capsys
):
    """With the hooks of the patches before it, and nothing of those behind it."""
    archive = str(sdist(tmp_path, "2.0", CONFLICTING))
    assert rebase(root, "--sdist", archive, "--dry-run") == 5
    folder = root / "build/rebase/2.0/merged"
    (file,) = (path for path in folder.rglob("*") if path.is_file())
    assert file == folder / "exchange.patch" / ENGINE_PY
    text, end = file.read_bytes(), b">>>>>>> vllm-2.0\n"
    marked = text[text.index(b"<<<<<<<") : text.index(end) + len(end)]
    mine, base, theirs = re.split(rb"[|=]{7}.*\n", marked)
    assert mine == b"<<<<<<< exchange.patch\n" + base.replace(SYNC, SYNC + EXCHANGE)
    assert (base, theirs) == (SYNC_AND_WAVE, FINISH + end)
    assert text.replace(marked, FINISH) == placed_engine(root)
    said = f"{file}: the file of vllm-2.0 merged with this patch by git, conflicts "
    assert f"  {said}marked: 1\n" in capsys.readouterr().err
    assert f"- {said}marked: 1\n" in report(root, "2.0")
    # It does not outlive the conflict.
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", NEWER))) == 0
    assert not folder.exists()


def test_a_file_that_git_cannot_merge_is_named(root, tmp_path, capsys):
    archive = sdist(tmp_path, "2.0", ENGINE + b"\0")
    assert rebase(root, "--sdist", str(archive)) == 1
    said = capsys.readouterr().err
    assert f"error: {ENGINE_PY}: expected git to merge gate.patch with vllm-2.0" in said
    assert "Cannot merge binary files" in said


def test_an_own_patch_that_does_not_apply_is_refused_with_its_place(
    root, tmp_path, capsys
):
    archive = str(sdist(tmp_path, "2.0", CONFLICTING))
    diff = diff_file(ENGINE_PY, ENGINE, replaced(ENGINE, (SYNC, SYNC + EXCHANGE)))
    own = {"patches/vllm/exchange.patch": b"D: x\n\n" + diff}
    write_tree(root / "lines/next", own)
    assert rebase(root, "--sdist", archive, "--line", "next") == 5
    said = capsys.readouterr().err
    assert re.search(r"exchange\.patch of the line, hunk 1, line \d+: expected", said)


def test_an_empty_patch_of_the_line_leaves_it_out(root, tmp_path):
    archive = str(sdist(tmp_path, "2.0", CONFLICTING))
    write_tree(root / "lines/next", {"patches/vllm/exchange.patch": b""})
    assert rebase(root, "--sdist", archive, "--line", "next") == 0
    assert rebase(root, "--sdist", archive) == 0
    assert (root / "patches/vllm/series").read_text() == "gate.patch\nhold.patch\n"
    assert not (root / "patches/vllm/exchange.patch").exists()


def test_a_patch_that_a_release_has_is_left_out_there(root, tmp_path):
    """Upstream has made another hook of it, which would not be found as ours."""
    field = f"Advisory: {CLOSED}\nFixed-In: 2.0\nRelies-On"
    edit(root / "patches/vllm/exchange.patch", "Relies-On", field)
    edit(root / "patches/vllm/hold.patch", "Relies-On", f"Advisory: {OTHER}\nRelies-On")
    archive = str(sdist(tmp_path, "1.5", ENGINE))
    assert rebase(root, "--sdist", archive, "--dry-run") == 0
    assert "1.5 closes 0 of 1.0: none.\n\n| there |" in report(root, "1.5")
    assert f"| {CLOSED} | high 7.5 | fixed here |" in report(root, "1.5")
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", CONFLICTING))) == 0
    said = report(root, "2.0")
    assert "| vllm | exchange.patch | untouched, left out |" in said
    assert "- left out: fixed in 2.0" in said
    assert f"2.0 closes 1 of 1.0: {CLOSED}." in said
    assert f"| {OTHER} | low | fixed here |" in said
    assert (root / "patches/vllm/series").read_text() == "gate.patch\nhold.patch\n"


def test_files_of_ours_that_do_not_fit_are_refused_whatever_git_says(
    root, tmp_path, monkeypatch, capsys
):
    """In a folder without git, or while GIT_DIR means another repository."""
    monkeypatch.undo()  # mypy is asked
    without = {path: text for path, text in UPSTREAM.items() if path != "vllm/queue.py"}
    moved = replaced(ENGINE, (b"from vllm.queue import Queue\n", b"Queue = list\n"))
    files = {**without, ENGINE_PY: moved}
    archive = str(make_sdist(tmp_path, "vllm-2.0", files))
    for patch in (root / "patches/vllm").glob("*.patch"):
        edit(patch, "vllm.queue:Queue", "vllm.engine:Engine")
    subprocess.run(["git", "init", "-q", tmp_path / "other"], check=True)
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    assert rebase(root, "--sdist", archive, "--dry-run") == 9
    said = capsys.readouterr().err
    assert re.search(r"vllm/balance\.py:2: .*vllm\.queue", said)
    (root / "vllm/balance.py").unlink()
    assert rebase(root, "--sdist", archive, "--dry-run") == 1
    assert "vllm: expected files of ours to hold against" in capsys.readouterr().err


def test_what_is_no_version_or_no_name_of_a_line_is_refused(root, capsys):
    for version in ("../1", ""):
        assert rebase(root, "bump", version) == 1
        said = capsys.readouterr().err
        assert re.match("error: (version|vllm): expected a (version|release)", said)
    for name in ("../x", "", "a/b", ".."):
        with pytest.raises(SystemExit):
            rebase(root, "--sdist", "a.tar.gz", "--line", name)
        said = capsys.readouterr().err.splitlines()[-1]
        assert "--line: expected a name of letters, digits, dots and hyphens, " in said


@pytest.mark.parametrize("name", ["upstream.toml", "patches/x"])
def test_what_git_does_not_have_is_not_overwritten(name, root, tmp_path, capsys):
    archive = str(sdist(tmp_path, "2.0", NEWER))
    hides = "config status.showUntrackedFiles no"
    for command in ("init", hides, "add .", "commit -m 1"):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        assert git(root, *who, *command.split()).status == 0
    with (root / name).open("a") as file:
        file.write("# mine\n")
    before = tracked(root)
    assert rebase(root, "--sdist", archive) == 1
    assert f"error: {name}: expected what git has" in capsys.readouterr().err
    assert tracked(root) == before


def test_where_git_cannot_tell_nothing_is_overwritten(root, tmp_path, capsys):
    (root / ".git").write_text("gitdir: gone\n")
    before = tracked(root)
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", NEWER))) == 1
    assert "expected git to say what is committed" in capsys.readouterr().err
    assert tracked(root) == before


def test_an_archive_and_a_release_are_refused_together(root, capsys):
    assert rebase(root, "--sdist", "vllm-2.0.tar.gz", "--ascend", "2.0") == 1
    assert "expected archives or releases, found both" in capsys.readouterr().err


def test_the_other_package_alone_can_move(root, tmp_path):
    plugin = b"# Newer.\n" + ASCEND["vllm_ascend/plugin.py"]
    files = {**ASCEND, "vllm_ascend/plugin.py": plugin}
    archive = make_sdist(tmp_path, "vllm_ascend-2.0", files)
    assert rebase(root, "--ascend-sdist", str(archive)) == 0
    lock = load_lock(root / "upstream.toml")
    assert (lock.vllm.version, lock.vllm_ascend.version) == ("1.0", "2.0")
    assert statuses(root, "1.0")["defer.patch"] == "context-only"
