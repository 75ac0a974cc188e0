"""Loading and exact application of a patch series."""

import pytest

from balance_tools.errors import ToolError
from balance_tools.series.apply import load_series
from rebase_samples import ENGINE, sample
from series_samples import HEADER, apply_series, contents, make_patch, pristine


def test_a_missing_series_is_not_one_without_patches(tmp_path):
    with pytest.raises(ToolError, match="none/series: expected the list of patches"):
        load_series(tmp_path / "none")


def test_header_fields_are_parsed(tmp_path):
    patches, _ = sample(tmp_path)
    header = load_series(patches).patches[0].header
    assert header.relies_on == (("pkg.other:helper",), ("pkg.other:Engine.step",))
    assert header.get("Removal-Plan") == "when the sample is no longer needed"
    _, more = (header.get("description") or "").splitlines()
    assert more.strip() == "Continued on a second line."
    assert header.raw == HEADER.encode()


def test_mismatch_in_the_last_patch_changes_nothing(tmp_path):
    patches, tree = sample(tmp_path)
    engine = tree / "vllm" / "engine.py"
    engine.write_bytes(ENGINE.replace(b"if not self.active", b"if self.active is None"))
    before = contents(tree)
    said = r"exchange\.patch: vllm/engine\.py, hunk 1, line 28(.|\n)*active is None"
    with pytest.raises(ToolError, match=said):
        apply_series(load_series(patches), tree)
    assert contents(tree) == before


def test_one_line_of_offset_is_refused(tmp_path):
    patches, tree = sample(tmp_path)
    (tree / "vllm" / "engine.py").write_bytes(b"# moved\n" + ENGINE)
    says = r"gate\.patch: vllm/engine\.py, hunk 1, line 1"
    with pytest.raises(ToolError, match=says):
        apply_series(load_series(patches), tree)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"a\r\nb\r\nc\r\n", b"a\r\nb\r\nnew\r\nc\r\n"),
        (b"\xef\xbb\xbfa\nb\nc\n", b"\xef\xbb\xbfnew\na\nb\nc\n"),
        (b"a\nb\nc", b"a\nb\nc\nd"),
        (b"a\nb\x0cc\rd\x85e\xff\n", b"new\na\nb\x0cc\rd\x85e\xff\n"),
    ],
)
def test_bytes_are_exact(tmp_path, old, new):
    tree, patches = tmp_path / "tree", tmp_path / "patches"
    tree.mkdir()
    (tree / "f").write_bytes(old)
    make_patch(patches, tree, "p.patch", {"f": new})
    pristine(tree, patches)
    assert (tree / "f").read_bytes() == old
    apply_series(load_series(patches), tree)
    assert contents(tree) == {"f": new}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("--- a/../x\n+++ b/../x\n@@ -1 +1 @@\n-a\n+b\n", "file of the tree"),
        ("--- /dev/null\n+++ b/x\n@@ -0,0 +1 @@\n+b\n", "files of ours"),
        ("--- a/x\n+++ b/x\n@@ -1,2 +1 @@\n-a\n+b\n", "expected a unified diff"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n\n", "empty line"),
        ("--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b", "no line end"),
        ("Binary files a/x and b/x differ\n", "expected hunks"),
    ],
)
def test_malformed_patch_is_named(tmp_path, body, message):
    (tmp_path / "series").write_text("bad.patch\n")
    (tmp_path / "bad.patch").write_text("diff -u x x\n" + body)
    with pytest.raises(ToolError, match=message) as caught:
        load_series(tmp_path)
    assert str(caught.value).startswith(str(tmp_path / "bad.patch"))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a.patch -p0", "plain name"),
        ("../a.patch", "plain name"),
        ("missing.patch", "does not exist"),
        ("gate.patch\ngate.patch", "another patch"),
    ],
)
def test_bad_series_line_is_named(tmp_path, line, message):
    patches, _ = sample(tmp_path)
    (patches / "series").write_text(line + "\n")
    with pytest.raises(ToolError, match=message):
        load_series(patches)
