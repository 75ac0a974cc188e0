from pathlib import Path

import pytest

from balance_tools.errors import ToolError
from balance_tools.kernels.prebuilt import (
    KernelWheel,
    extract_kernels,
    fetch_kernels,
)
from balance_tools.paths import Paths
from balance_tools.upstream.lock import Lock
from index_samples import SampleIndex, make_sdist, make_wheel

CSRC = {"csrc/op.cpp": "op\n", "csrc/include/op.h": "h\n"}
PYTHON = {
    "vllm_ascend/__init__.py": "",
    "vllm_ascend/ops/op.py": "op\n",
    "vllm_ascend/_version.py": "__version__ = '1.0'\n",
    "vllm_ascend/ops/README.md": "words\n",
}
COMPILED = {
    "vllm_ascend/vllm_ascend_C.cpython-311-x86_64-linux-gnu.so": "\x7fELF",
    "vllm_ascend/libvllm_ascend_kernels.so": "\x7fELF",
    "vllm_ascend/_cann_ops_custom/op.json": "{}",
    "vllm_ascend/_cann_ops_custom/impl/op.py": "part of the kernel\n",
}
GENERATED = {"vllm_ascend/_build_info.py": "__device_type__ = 'A2'\n"}
METADATA = {"vllm_ascend-1.0.dist-info/METADATA": "", "other/file.so": ""}
POST = {**CSRC, **PYTHON, "vllm_ascend/ops/op.py": "fixed\n"}


class Release:
    """A pinned post-release, the release with the kernels, and its wheel."""

    def __init__(self, index: SampleIndex, paths: Paths) -> None:
        self.index = index
        self.paths = paths
        self.post = POST
        self.sdist = {**CSRC, **PYTHON}
        self.wheel = {**PYTHON, **COMPILED, **GENERATED, **METADATA}

    def lock(self) -> Lock:
        top = "vllm_ascend-1.0"
        add = self.index.add
        name = f"{top}-cp311-cp311-manylinux_2_34_x86_64.whl"
        return Lock(
            vllm=add("vllm-1.0.tar.gz", b""),
            vllm_ascend=add(f"{top}.post1.tar.gz", make_sdist(top, self.post)),
            kernel_sdist=add(f"{top}.tar.gz", make_sdist(top, self.sdist)),
            kernel_wheels=(add(name, make_wheel(self.wheel)),),
        )

    def fetch(self) -> KernelWheel:
        return fetch_kernels(self.lock(), paths=self.paths)


@pytest.fixture
def release(index: SampleIndex, tmp_path: Path) -> Release:
    return Release(index, Paths(tmp_path))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"csrc/op.cpp": "other\n"}, "csrc/op.cpp"),
        ({"csrc/new.cpp": "new\n"}, "csrc/new.cpp"),
        ({"csrc/new.cpp": "", "csrc/a.h": ""}, "csrc/a.h, csrc/new.cpp"),
    ],
)
def test_another_csrc_is_refused_by_name(
    changes: dict[str, str], named: str, release: Release
) -> None:
    release.post = {**POST, **changes}
    with pytest.raises(ToolError) as caught:
        release.fetch()
    message = str(caught.value)
    assert message.startswith(f"{named}: expected the same in vllm_ascend-1.0.post1")
    assert f"found {len(changes)} files that differ" in message


def test_a_file_that_the_pinned_csrc_lacks_is_refused(release: Release) -> None:
    release.sdist = {**release.sdist, "csrc/more.cpp": ""}
    with pytest.raises(ToolError, match=r"^csrc/more\.cpp: "):
        release.fetch()


def test_no_csrc_at_all_proves_nothing(release: Release) -> None:
    release.post = release.sdist = PYTHON
    with pytest.raises(ToolError, match="expected a folder csrc/"):
        release.fetch()


def test_only_compiled_files_are_unpacked(release: Release, tmp_path: Path) -> None:
    dest = tmp_path / "out"
    written = extract_kernels(release.fetch(), dest)
    assert {p.relative_to(dest).as_posix() for p in written} == set(COMPILED)
    assert {p for p in dest.rglob("*") if p.is_file()} == set(written)
    for path in written:
        assert path.read_text() == COMPILED[path.relative_to(dest).as_posix()]


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"vllm_ascend/ops/op.py": "fixed\n"}, "vllm_ascend/ops/op.py"),
        ({"vllm_ascend/ops/gone.py": None}, "vllm_ascend/ops/gone.py"),
    ],
)
def test_a_wheel_of_another_sdist_is_refused(
    changes: dict[str, str | None], named: str, release: Release
) -> None:
    for path, text in changes.items():
        if text is None:
            release.sdist = {**release.sdist, path: ""}
        else:
            release.wheel = {**release.wheel, path: text}
    with pytest.raises(ToolError) as caught:
        release.fetch()
    message = str(caught.value)
    assert "vllm_ascend-1.0-cp311-cp311-manylinux_2_34_x86_64.whl: " in message
    assert named in message


def test_a_wheel_without_kernels_is_refused(release: Release) -> None:
    release.wheel = {**PYTHON, **GENERATED}
    with pytest.raises(ToolError, match="expected compiled kernels"):
        release.fetch()
