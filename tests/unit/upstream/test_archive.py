import os
import re
import tarfile

import pytest

from balance_tools.errors import ToolError
from balance_tools.upstream.pristine import extract_sdist
from index_samples import Member, file_member, make_sdist, make_tar, special_member


@pytest.fixture
def archive(tmp_path):
    return tmp_path / "vllm-1.tar.gz"


@pytest.fixture
def dest(tmp_path):
    return tmp_path / "pristine" / "vllm-1"


def contents(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def test_of_a_file_only_content_and_executability_are_kept(archive, dest):
    script, text = file_member("t/run", "x"), file_member("t/text", "x")
    script[0].mode, text[0].mode = 0o6777, 0o666
    script[0].uid = text[0].gid = 12345
    archive.write_bytes(make_tar([script, text]))
    extract_sdist(archive, dest)
    for name, mode in (("run", 0o755), ("text", 0o644)):
        found = (dest / name).stat()
        assert found.st_mode & 0o7777 == mode
        assert (found.st_uid, found.st_gid) == (os.getuid(), os.getgid())


def test_the_oldest_python_can_unpack_it(archive, dest, monkeypatch):
    """`filter=` of `TarFile.extract` came with 3.10.12 and 3.11.4."""

    def extract(self, member, path="", set_attrs=True, *, numeric_owner=False):
        raise AssertionError("of that Python, it keeps owners and special mode bits")

    monkeypatch.setattr(tarfile.TarFile, "extract", extract)
    archive.write_bytes(make_sdist("t", {"a/f": "x"}))
    extract_sdist(archive, dest)
    assert contents(dest) == ["a", "a/f"]


ESCAPES: dict[str, list[Member]] = {
    "dots": [file_member("t/../../evil", "x")],
    "absolute": [file_member("/tmp/evil", "x")],
    "backslash": [file_member("t\\..\\evil", "x")],
    "symlink": [special_member("t/l", tarfile.SYMTYPE, "f")],
    "hard link": [special_member("t/l", tarfile.LNKTYPE, "t/f")],
    "device": [special_member("t/dev", tarfile.CHRTYPE)],
    "pipe": [special_member("t/pipe", tarfile.FIFOTYPE)],
}


@pytest.mark.parametrize("members", ESCAPES.values(), ids=ESCAPES.keys())
def test_an_archive_that_leaves_its_folder_is_refused(members, archive, dest, tmp_path):
    archive.write_bytes(make_tar([file_member("t/fine.py", ""), *members]))
    said = f"{archive}: expected only files below its own folder.*"
    with pytest.raises(ToolError, match=said + re.escape(repr(members[-1][0].name))):
        extract_sdist(archive, dest)
    assert contents(tmp_path) == ["pristine", "vllm-1.tar.gz"]


def test_two_top_folders_are_refused(archive, dest):
    archive.write_bytes(make_tar([file_member("a/f", ""), file_member("b/f", "")]))
    with pytest.raises(ToolError, match=r"expected one top folder .*found a, b"):
        extract_sdist(archive, dest)


def test_a_broken_archive_is_refused(archive, dest):
    """And what an interrupted run has left is replaced."""
    whole = make_sdist("t", {"f": bytes(range(256)) * 40})
    for damaged in (whole[: len(whole) // 2], b"not an archive", b""):
        archive.write_bytes(damaged)
        with pytest.raises(ToolError, match="expected an archive that can be unpacked"):
            extract_sdist(archive, dest)
        assert contents(dest.parent) == []
    (partial := dest.with_name(".vllm-1.partial")).mkdir()
    (partial / "old").touch()
    archive.write_bytes(make_sdist("t", {"f": ""}))
    extract_sdist(archive, dest)
    assert contents(dest.parent) == ["vllm-1", "vllm-1/f"]
