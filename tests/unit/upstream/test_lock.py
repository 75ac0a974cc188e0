from dataclasses import replace

import pytest

from balance_tools.distribution import load_settings
from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.series.apply import load_series
from balance_tools.upstream.lock import Artifact, Lock, dump_lock, load_lock, parse_lock

SDIST = Artifact("vllm", "0.23.0", "vllm-0.23.0.tar.gz", "0a" * 32, 5)
ASCEND = Artifact("vllm-ascend", "0.23.0", "vllm_ascend-0.23.0.tar.gz", "0b" * 32, 6)


def wheel(tags):
    return replace(ASCEND, filename=f"vllm_ascend-0.23.0-{tags}.whl")


def test_the_committed_lock_is_canonical_and_names_no_place():
    path = Paths.find().lock
    assert dump_lock(load_lock(path)) == path.read_text()
    assert "://" not in path.read_text()


WHEELS = tuple(
    wheel(f"cp{python}-cp{python}-manylinux_2_34_{arch}")
    for python, arch in ((310, "x86_64"), (311, "aarch64"))
)


@pytest.mark.parametrize(
    "lock", [Lock(SDIST, ASCEND), Lock(SDIST, ASCEND, ASCEND, WHEELS)]
)
def test_what_is_dumped_loads_to_the_same_lock_and_the_same_bytes(lock):
    text = dump_lock(lock)
    assert parse_lock(text) == lock
    assert dump_lock(parse_lock(text)) == text


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('version = "0.23.0"', "", "expected project, version"),
        ("size = 5", 'size = "5"', "expected project, version"),
        ("size = 5", "size = 5\nurl = 1", "expected project, version"),
        ("0a0a0a", "0A0A0A", "expected project, version"),
        ("vllm-0.23.0.tar.gz", "../vllm-0.23.0.tar.gz", "expected project, version"),
        ("vllm-0.23.0.tar.gz", "vllm-0.24.0.tar.gz", "expected project, version"),
        ("[vllm]", "[vlm]", "vllm: expected project"),
        ("[vllm]", "[vllm", "expected TOML"),
        ("[vllm]", "kernel_wheels = 3\n[vllm]", "kernel_wheels.0.: expected project"),
    ],
)
def test_a_lock_that_is_wrong_is_refused(old, new, says):
    text = dump_lock(Lock(SDIST, ASCEND))
    assert old in text
    with pytest.raises(ToolError, match=says) as caught:
        parse_lock(text.replace(old, new, 1))
    assert str(caught.value).startswith("upstream.toml: ")


def test_a_missing_lock_is_named(tmp_path):
    with pytest.raises(ToolError, match=r"nowhere\.toml: expected the lock"):
        load_lock(tmp_path / "nowhere.toml")


def test_a_file_that_an_editor_saved_otherwise_is_named(tmp_path):
    (path := tmp_path / "series").write_text("a.patch", encoding="utf-16")
    for load in (load_lock, load_settings, lambda path: load_series(path.parent)):
        with pytest.raises(ToolError, match="series: expected UTF-8"):
            load(path)


def test_a_kernel_wheel_that_is_not_locked_is_refused():
    lock = Lock(SDIST, ASCEND, ASCEND, WHEELS[:1])
    assert lock.kernel_wheel("cp310", "x86_64") == WHEELS[0]
    with pytest.raises(ToolError, match="cp310 on aarch64, found cp310-cp310-many"):
        lock.kernel_wheel("cp310", "aarch64")
