"""A rebase moves the series, or stops at the place where a person must decide."""

import re
import subprocess
from pathlib import Path

import pytest

from balance_tools.paths import Paths
from balance_tools.run import git
from balance_tools.upstream.lock import load_lock
from balance_tools.upstream.pristine import ensure_pristine
from rebase_samples import (
    ASCEND,
    ENGINE,
    SYNC_AND_WAVE,
    UPSTREAM,
    Files,
    edit,
    make_sdist,
    misplaced,
    patched_engine,
    rebase,
    replaced,
    report,
    statuses,
    tracked,
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
CONFLICTING = replaced(ENGINE, (SYNC_AND_WAVE, b"            self.finish(executed)\n"))


def sdist(folder: Path, version: str, engine: bytes, **more: bytes) -> Path:
    files: Files = {**UPSTREAM, "vllm/engine.py": engine, **more}
    return make_sdist(folder, f"vllm-{version}", files)


def test_series_and_lock_move_together(root, tmp_path):
    before = tracked(root)
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", NEWER))) == 0
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


def test_a_conflict_holds_both_sides_and_continue_needs_it_resolved(
    root, tmp_path, capsys
):
    before = tracked(root)
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", CONFLICTING))) == 5
    said = capsys.readouterr().err
    file = root / "build/rebase/2.0/vllm/vllm/engine.py"
    assert "exchange.patch: conflict" in said
    assert "is in Engine.loop any more" in said
    assert f"edit {file}" in said
    text = file.read_text()
    block = text[text.index("<<<<<<<") : text.index(">>>>>>>")]
    assert "<<<<<<< vllm-2.0: neither `self.active = self.sync(executed)`" in block
    assert "||||||| vllm-1.0\n" in block
    assert block.count("self.gate.exchange(") == 1
    assert ">>>>>>> exchange.patch\n" in text
    assert tracked(root) == before
    assert rebase(root, "continue") == 1
    assert "a conflict is left" in capsys.readouterr().err
    clean = text.replace(f"{block}>>>>>>> exchange.patch\n", "")
    file.write_text(clean + "def broken(:\n")
    assert rebase(root, "continue") == 1
    assert "not valid Python" in capsys.readouterr().err
    (file.parent / "new.py").touch()
    file.write_text(clean)
    assert rebase(root, "continue") == 1
    assert "new.py: expected an edit, found that the file is new" in (
        capsys.readouterr().err
    )
    (file.parent / "new.py").unlink()
    hook = "            self.finish(executed)\n"
    exchange = "            self.gate.exchange(True)\n"
    file.write_text(clean.replace(hook, hook + exchange))
    assert rebase(root, "continue") == 0
    assert statuses(root, "2.0")["exchange.patch"] == "content-changed"
    assert "was conflict; decided by a person" in report(root, "2.0")
    assert f"+{exchange}" in (root / "patches/vllm/exchange.patch").read_text()


def test_skip_leaves_the_patch_out(root, tmp_path):
    rebase(root, "--sdist", str(sdist(tmp_path, "2.0", CONFLICTING)))
    gate = root / "patches/vllm/gate.patch"
    edit(gate, "Sample hook", "Corrected meanwhile")
    assert rebase(root, "skip") == 0
    assert "Corrected meanwhile" in gate.read_text()
    assert (root / "patches/vllm/series").read_text() == "gate.patch\nhold.patch\n"
    assert not (root / "patches/vllm/exchange.patch").exists()


def test_one_bump_at_a_time_and_abort_goes_back(root, tmp_path, capsys):
    before, archive = tracked(root), str(sdist(tmp_path, "2.0", CONFLICTING))
    assert rebase(root, "--sdist", archive) == 5
    assert rebase(root, "--sdist", archive) == 1
    assert "rebase/2.0: expected no bump in progress" in capsys.readouterr().err
    assert rebase(root, "--sdist", archive, "--dry-run") == 5
    assert tracked(root) == before
    found = statuses(root, "2.0.dry-run")
    assert (found["exchange.patch"], found["defer.patch"]) == ("conflict", "untouched")
    assert rebase(root, "abort") == 0
    assert tracked(root) == before
    assert not (root / "build/rebase/2.0").exists()


@pytest.mark.parametrize("verb", ["continue", "skip", "abort"])
def test_without_a_bump_there_is_nothing_to_go_on_with(verb, root, capsys):
    assert rebase(root, verb) == 1
    assert "expected a bump in progress, found none" in capsys.readouterr().err


@pytest.mark.parametrize("version", ["../1", "", "1 0"])
def test_what_is_no_version_is_refused(version, root, capsys):
    assert rebase(root, "bump", version) == 1
    said = capsys.readouterr().err
    assert re.match("error: (version|vllm): expected a (version|release)", said)


@pytest.mark.parametrize("name", ["../x", "", "a/b", ".."])
def test_what_is_no_name_of_a_line_is_refused_before_the_work(
    name, root, tmp_path, capsys
):
    archive = str(sdist(tmp_path, "2.0", NEWER))
    with pytest.raises(SystemExit):
        rebase(root, "--sdist", archive, "--line", name)
    said = capsys.readouterr().err.splitlines()[-1]
    assert "--line: expected a name of letters, digits, dots and hyphens, " in said
    assert not (root / "build/rebase").exists()


@pytest.mark.parametrize("name", ["upstream.toml", "patches/vllm/series", "patches/x"])
def test_what_git_does_not_have_is_not_overwritten(name, root, tmp_path, capsys):
    archive = str(sdist(tmp_path, "2.0", NEWER))
    hides = "config status.showUntrackedFiles no"
    for command in ("init", hides, "add .", "commit -m 1"):
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run(git(root, *who, *command.split()), check=True)
    with (root / name).open("a") as file:
        file.write("# mine\n")
    before = tracked(root)
    assert rebase(root, "--sdist", archive) == 1
    assert f"error: {name}: expected what git has" in capsys.readouterr().err
    assert tracked(root) == before
    (root / "lines").mkdir()
    assert rebase(root, "--sdist", archive, "--line", "next") == 0
    assert rebase(root, "--sdist", archive, "--line", "next") == 1
    assert "error: lines/next/: expected what git has" in capsys.readouterr().err


def test_where_git_cannot_tell_nothing_is_overwritten(root, tmp_path, capsys):
    (root / ".git").write_text("gitdir: gone\n")
    before = tracked(root)
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", NEWER))) == 1
    assert "expected git to say what is committed" in capsys.readouterr().err
    assert tracked(root) == before


@pytest.mark.parametrize("more", [["2.0"], ["--ascend", "2.0"]])
def test_an_archive_and_a_release_are_refused_together(more, root, capsys):
    assert rebase(root, "--sdist", "vllm-2.0.tar.gz", *more) == 1
    assert "expected archives or releases, found both" in capsys.readouterr().err


def test_a_series_that_does_not_fit_its_own_lock_is_refused(root, tmp_path, capsys):
    edit(
        root / "patches/vllm/hold.patch", "             # Admit", "             # Take"
    )
    assert rebase(root, "--sdist", str(sdist(tmp_path, "2.0", NEWER))) == 1
    assert "hold.patch: vllm/engine.py, hunk 1, line" in capsys.readouterr().err
    assert rebase(root, "abort") == 1  # nothing is in progress


def test_the_other_package_alone_can_move(root, tmp_path):
    plugin = b"# Newer.\n" + ASCEND["vllm_ascend/plugin.py"]
    files = {**ASCEND, "vllm_ascend/plugin.py": plugin}
    archive = make_sdist(tmp_path, "vllm_ascend-2.0", files)
    assert rebase(root, "--ascend-sdist", str(archive)) == 0
    lock = load_lock(root / "upstream.toml")
    assert (lock.vllm.version, lock.vllm_ascend.version) == ("1.0", "2.0")
    assert statuses(root, "1.0")["defer.patch"] == "context-only"
