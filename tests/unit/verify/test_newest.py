"""Where the index lacks what a release requires, a named project may be older."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from zipfile import ZipFile

import pytest
from packaging.version import Version

from balance_tools.errors import ToolError
from balance_tools.upstream.index import Index
from balance_tools.upstream.pip_config import PipConfig, Source
from balance_tools.upstream.resolve import final_releases
from balance_tools.verify.newest import lines_with, requirements_of, too_new

Releases = Callable[[str], set[Version]]
METADATA = """Metadata-Version: 2.4
Name: vllm
Version: 1.0
Requires-Dist: certs>=3
Requires-Dist: fastapi[standard]>=0.1
Requires-Dist: other==2
Requires-Dist: windows; sys_platform == "win32"
Requires-Dist: audio; extra == "audio"
"""


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "vllm-1.0-py3-none-any.whl"
    with ZipFile(path, "w") as file:
        file.writestr("vllm-1.0.dist-info/METADATA", METADATA)
        file.writestr("guard-1.0.dist-info/METADATA", "Name: guard\nVersion: 1.0\n")
    return path


@pytest.fixture
def releases(tmp_path: Path) -> Releases:
    folder = tmp_path / "index"
    folder.mkdir()
    for name in ("certs-1.0.tar.gz", "certs-2.9.tar.gz", "certs-3.1rc1.tar.gz"):
        (folder / name).touch()
    (folder / "other-2-py3-none-any.whl").touch()
    config = PipConfig(sources=(Source("find-links", str(folder)),))
    return partial(final_releases, Index(config))


def test_only_what_is_named_and_too_new_is_replaced(
    wheel: Path, releases: Releases
) -> None:
    wanted = requirements_of(wheel)
    instead = too_new(wanted, ["Certs", "other"], releases)
    assert [str(one) for one in instead] == [
        "certs 2.9 instead of >=3: the index has none newer"
    ]
    assert lines_with(wanted, instead) == [
        "certs==2.9",
        "fastapi[standard]>=0.1",
        "other==2",
    ]
    assert too_new(wanted, ["other"], releases) == []


def test_a_name_that_the_index_lacks_is_an_error(
    wheel: Path, releases: Releases
) -> None:
    with pytest.raises(ToolError, match="--newest fastapi: expected a release"):
        too_new(requirements_of(wheel), ["fastapi"], releases)
