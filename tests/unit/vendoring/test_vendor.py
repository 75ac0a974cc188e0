import shutil
from pathlib import Path

import pytest

from balance_tools.distribution import Choice
from balance_tools.errors import ToolError
from balance_tools.vendoring.checkout import make_checkout
from balance_tools.wheel.plan import make_plan
from repo_samples import ASCEND, NEXT, OURS, PATCHED, UPSTREAM


def times(folder):
    return {str(path): path.lstat().st_mtime_ns for path in folder.rglob("*")}


def test_the_tree_is_upstream_patched_with_our_files_in_it(repo):
    (line,) = repo.vendor()
    assert line.startswith("vllm 0.23.0: 3 files, 1 patches, 1 files of ours")
    assert repo.tree() == {
        "__init__.py": "",
        "version.py": PATCHED,
        "v1/core/sched/scheduler.py": UPSTREAM["vllm/v1/core/sched/scheduler.py"],
        "v1/core/sched/balance/rank/gate.py": "# ours\n",
    }


def test_the_command_makes_both_packages_and_git_sees_nothing(repo):
    assert repo.run("vendor")[0] == 0
    assert repo.tree("vllm_ascend") == {"__init__.py": ""}
    kernel = repo.paths.pristine / "vllm-ascend-0.23.0.post1" / "csrc" / "kernel.cpp"
    assert kernel.read_text() == ASCEND["csrc/kernel.cpp"]
    assert repo.git("status", "--porcelain") == ""
    # A second run touches nothing, and asks nobody.
    repo.index.stop()
    before = times(repo.root / "vllm"), times(repo.paths.pristine)
    code, out, err = repo.run("vendor")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "vllm 0.23.0: up to date",
        "vllm_ascend 0.23.0.post1: up to date",
    ]
    assert (times(repo.root / "vllm"), times(repo.paths.pristine)) == before


def test_a_sparse_checkout_is_refused_before_anything_is_written(repo):
    """It would be made without what this project is for, and counts as clean."""
    repo.git("sparse-checkout", "set", "--cone", "patches")
    assert not (repo.root / OURS).exists()
    assert repo.git("status", "--porcelain") == ""
    code, out, err = repo.run("vendor")
    assert (code, out) == (1, "")
    assert err.startswith(f"error: {OURS}: expected what git tracks, found no such")
    assert "git sparse-checkout disable" in err
    assert not (repo.root / "vllm").exists()
    with pytest.raises(ToolError, match="expected what git tracks"):
        make_checkout(repo.paths, repo.root / "build/other", repo.paths.lock, None)
    repo.git("sparse-checkout", "disable")
    repo.git("update-index", "--skip-worktree", "patches/vllm/four.patch")
    (repo.root / "patches/vllm/four.patch").unlink()
    with pytest.raises(ToolError, match=r"four\.patch: expected what git tracks"):
        make_plan(repo.paths, Choice())
    assert repo.run("vendor")[0] == 1


def test_a_locale_that_is_not_utf_8_changes_no_name(repo):
    """Upstream has names in Chinese."""
    files = {**UPSTREAM, "vllm/\u63a8\u7406.md": "\u63a8\u7406\n"}
    repo.upgrade(files)
    repo.env |= {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    code, _, err = repo.run("vendor")
    assert code == 0, err
    assert repo.tree()["\u63a8\u7406.md"] == "\u63a8\u7406\n"
    assert "up to date" in repo.run("vendor")[1]


def test_a_patch_that_does_not_fit_leaves_the_old_tree(repo):
    repo.vendor()
    before = repo.tree()
    repo.upgrade({**NEXT, "vllm/version.py": "zero = 0\n"})
    with pytest.raises(ToolError, match=r"four\.patch"):
        repo.vendor()
    assert repo.tree() == before


def test_files_of_the_user_and_edits_of_ours_survive(repo):
    repo.write("vllm/before.py", "before\n")
    repo.vendor()
    repo.write(OURS, "# edited\n")
    repo.write("vllm/new/mine.py", "mine\n")
    repo.write("vllm/__pycache__/version.cpython-311.pyc", "stale")
    (repo.root / "vllm/new/link.py").symlink_to("mine.py")
    repo.upgrade(NEXT)
    repo.vendor()
    assert repo.read(OURS) == "# edited\n"
    assert repo.read("vllm/before.py") == "before\n"
    assert repo.read("vllm/new/mine.py") == "mine\n"
    assert not (repo.root / "vllm/__pycache__").exists()
    assert (repo.root / "vllm/new/link.py").readlink() == Path("mine.py")


def test_a_tracked_file_that_upstream_has_is_refused(repo):
    repo.vendor()
    repo.git("add", "-f", "vllm/version.py")
    before = repo.tree()
    found = r"^vllm/version\.py: expected only files of ours .*git rm --cached"
    with pytest.raises(ToolError, match=found):
        repo.vendor()
    assert repo.tree() == before


@pytest.mark.parametrize("mine", ["vllm/added.py", "vllm/added.py/mine.py", "vllm/sub"])
def test_a_file_of_the_user_where_upstream_puts_one_is_refused(mine, repo):
    repo.vendor()
    repo.write(mine, "mine\n")
    repo.upgrade({**NEXT, "vllm/sub/file.py": ""})
    before = repo.tree()
    for discard_edits in (False, True):
        with pytest.raises(ToolError, match=f"^{mine}: .*move a file of yours"):
            repo.vendor(discard_edits=discard_edits)
    assert repo.tree() == before


def test_an_edit_of_upstreams_file_is_refused(repo):
    repo.vendor()
    repo.write("vllm/version.py", "edited\n")
    before = repo.tree()
    for release in (None, NEXT):
        if release:
            repo.upgrade(release)
        found = r"^vllm/version\.py: expected what `vendor` wrote.*--discard-edits"
        with pytest.raises(ToolError, match=found):
            repo.vendor()
        assert repo.tree() == before
    repo.vendor(discard_edits=True)
    assert repo.read("vllm/version.py") == PATCHED


def test_an_edit_that_went_into_a_patch_is_no_edit(repo):
    repo.vendor()
    repo.write("vllm/version.py", PATCHED.replace("four = 4", "four = 5"))
    patch = repo.read("patches/vllm/four.patch")
    repo.write("patches/vllm/four.patch", patch.replace("four = 4", "four = 5"))
    repo.vendor()
    assert repo.read("vllm/version.py").endswith("four = 5\n")


def test_a_lost_manifest_costs_nothing(repo):
    repo.vendor()
    before = repo.tree()
    for manifest in ("", "{}", '{"format": 2, "files": 3, "inputs": {}}', None):
        repo.write("vllm/.vendor.json", manifest or "")
        if manifest is None:
            (repo.root / "vllm/.vendor.json").unlink()
        repo.vendor()
        assert repo.tree() == before
    # Nothing of upstream became "ours" by it.
    repo.upgrade(NEXT)
    repo.vendor()
    assert "v1/core/sched/scheduler.py" not in repo.tree()


def test_a_changed_pristine_tree_is_not_used(repo):
    repo.vendor()
    pristine = repo.paths.pristine / "vllm-0.23.0" / "vllm"
    (pristine / "version.py").write_text("changed\n")
    (pristine / "extra.py").write_text("")
    repo.write("patches/vllm/series", "")
    repo.vendor()
    assert repo.tree()["version.py"] == UPSTREAM["vllm/version.py"]
    assert "extra.py" not in repo.tree()


def test_what_a_build_reads_is_unpacked_again_after_a_clean(repo):
    repo.vendor()
    shutil.rmtree(repo.paths.pristine)
    assert repo.vendor() == ["vllm 0.23.0: up to date"]
    assert (repo.paths.pristine / "vllm-0.23.0" / "vllm").is_dir()
