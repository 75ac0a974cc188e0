import pytest

from balance_tools.errors import ToolError
from balance_tools.kernels.prebuilt import extract_kernels, fetch_kernels
from balance_tools.paths import Paths
from balance_tools.upstream.lock import Lock
from index_samples import make_sdist, make_wheel

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

    def __init__(self, index, paths):
        self.index, self.paths, self.post = index, paths, POST
        self.sdist = {**CSRC, **PYTHON}
        self.wheel = {**PYTHON, **COMPILED, **GENERATED, **METADATA}

    def lock(self):
        top = "vllm_ascend-1.0"
        add = self.index.add
        name = f"{top}-cp311-cp311-manylinux_2_34_x86_64.whl"
        return Lock(
            vllm=add("vllm-1.0.tar.gz", b""),
            vllm_ascend=add(f"{top}.post1.tar.gz", make_sdist(top, self.post)),
            kernel_sdist=add(f"{top}.tar.gz", make_sdist(top, self.sdist)),
            kernel_wheels=(add(name, make_wheel(self.wheel)),),
        )

    def fetch(self):
        return fetch_kernels(self.paths, self.lock(), "cp311", "x86_64")


@pytest.fixture
def release(index, tmp_path):
    return Release(index, Paths(tmp_path))


DIFFERS = r": expected the same in vllm_ascend-1\.0\.post1.* found \d files that differ"
WHEEL = r"vllm_ascend-1\.0-cp311-cp311-manylinux_2_34_x86_64\.whl: .*"


@pytest.mark.parametrize(
    ("part", "changes", "says"),
    [
        ("post", {"csrc/op.cpp": "other\n"}, r"^csrc/op\.cpp" + DIFFERS),
        ("sdist", {"csrc/z.h": "", "csrc/a.h": ""}, r"^csrc/a\.h, csrc/z\.h" + DIFFERS),
        ("wheel", {"vllm_ascend/ops/op.py": "fixed\n"}, WHEEL + r"ascend/ops/op\.py"),
        ("sdist", {"vllm_ascend/ops/gone.py": ""}, WHEEL + r"ascend/ops/gone\.py"),
    ],
)
def test_what_is_not_the_same_is_refused_by_name(part, changes, says, release):
    setattr(release, part, {**getattr(release, part), **changes})
    with pytest.raises(ToolError, match=says):
        release.fetch()


def test_only_compiled_files_are_unpacked(release, tmp_path):
    dest = tmp_path / "out"
    extract_kernels(release.fetch(), dest)
    written = [path for path in dest.rglob("*") if path.is_file()]
    found = {path.relative_to(dest).as_posix(): path.read_text() for path in written}
    assert found == COMPILED


def test_what_proves_nothing_is_refused(release):
    release.wheel = {**PYTHON, **GENERATED}
    with pytest.raises(ToolError, match="expected compiled kernels"):
        release.fetch()
    release.post = release.sdist = PYTHON
    with pytest.raises(ToolError, match="expected a folder csrc/"):
        release.fetch()
