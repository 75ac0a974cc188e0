import os

import pytest

from balance_tools.errors import ToolError
from balance_tools.upstream.index import Index
from balance_tools.upstream.lock import Lock
from balance_tools.upstream.resolve import resolve

WHEELS = [
    f"vllm_ascend-0.23.0-{python}-{python}-manylinux_2_34_{arch}.whl"
    for python in ("cp310", "cp311", "cp312")
    for arch in ("aarch64", "x86_64")
]


@pytest.fixture
def releases(index):
    """An index with some releases; what it has of the pinned ones."""
    index.add("vllm-0.22.0.tar.gz", b"older")
    index.add("vllm-0.23.0-cp38-abi3-manylinux_2_28_x86_64.whl", b"not wanted")
    index.add("vllm_ascend-0.23.0-cp311-cp311-win_amd64.whl", b"not wanted")
    index.add("vllm_ascend-0.24.0rc1.tar.gz", b"without wheels")
    return Lock(
        vllm=index.add("vllm-0.23.0.tar.gz", b"vllm"),
        vllm_ascend=index.add("vllm_ascend-0.23.0.post1.tar.gz", b"ascend"),
        kernel_sdist=index.add("vllm_ascend-0.23.0.tar.gz", b"kernels"),
        kernel_wheels=tuple(index.add(name, os.urandom(9)) for name in WHEELS),
    )


@pytest.mark.parametrize("hashes", [False, True])
def test_versions_become_a_lock(hashes, index, releases):
    index.hashes = hashes
    assert resolve("0.23.0", "0.23.0.post1", Index()) == releases


def test_a_release_without_any_wheels_has_no_kernels(index, releases):
    lock = resolve("0.23.0", "0.24.0rc1", Index())
    assert (lock.kernel_sdist, lock.kernel_wheels) == (None, ())


def test_a_version_that_is_not_there_is_named_with_those_that_are(index, releases):
    with pytest.raises(ToolError, match=r"^vllm 0\.29\.0: .* are 0\.22\.0, 0\.23\.0"):
        resolve("0.29.0", "0.23.0", Index())
    with pytest.raises(ToolError, match=r"^vllm: expected a version, found 'new'"):
        resolve("new", "0.23.0", Index())


def test_a_yanked_release_is_refused_with_the_reason(index, releases):
    index.yanked["vllm-0.23.0.tar.gz"] = "wrong outputs"
    says = r"^vllm 0\.23\.0: .* it was yanked \(wrong outputs\); .* with --sdist$"
    with pytest.raises(ToolError, match=says):
        resolve("0.23.0", "0.23.0.post1", Index())


def test_a_source_that_is_down_is_an_error_even_if_another_answers(
    releases, monkeypatch
):
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with pytest.raises(ToolError, match=r"^extra-index-url .* no connection"):
        resolve("0.23.0", "0.23.0", Index())
