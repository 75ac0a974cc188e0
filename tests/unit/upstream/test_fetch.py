from __future__ import annotations

import base64
import os
from dataclasses import replace
from pathlib import Path

import pytest

from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.upstream.fetch import fetch
from balance_tools.upstream.index import Index, PipConfig, Source
from balance_tools.upstream.lock import Artifact
from index_samples import Fault, SampleIndex
from repo_samples import get_from, pip_config

NAME = "vllm-0.23.0.tar.gz"
DATA = os.urandom(300_000)


@pytest.fixture
def artifact(index: SampleIndex) -> Artifact:
    return index.add(NAME, DATA)


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths(tmp_path)


def source(setting: str, location: str) -> PipConfig:
    return PipConfig((Source(setting, location),), retries=0)


def left(paths: Paths) -> set[str]:
    """What lies in the cache, lock files left out."""
    return {p.name for p in paths.cache.rglob("*") if p.is_file()} - {".lock"}


@pytest.mark.parametrize("json", [False, True])
def test_a_file_is_found_through_relative_links(
    json: bool, index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    index.json = json
    cached = get_from(pip_config(index))(artifact, paths)
    assert cached.read_bytes() == DATA
    assert cached == paths.cache / artifact.sha256 / NAME
    assert left(paths) == {NAME}


def test_a_cached_file_needs_no_network(
    index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    get_from(pip_config(index))(artifact, paths)

    def no_index() -> Index:
        raise AssertionError("asked for an index")

    assert fetch(artifact, paths, no_index).read_bytes() == DATA


def test_a_damaged_file_in_the_cache_is_fetched_again(
    index: SampleIndex,
    artifact: Artifact,
    paths: Paths,
    capsys: pytest.CaptureFixture[str],
) -> None:
    get = get_from(pip_config(index))
    cached = get(artifact, paths)
    cached.write_bytes(DATA[:-1] + b"?")
    assert get(artifact, paths).read_bytes() == DATA
    assert f"{cached}: damaged" in capsys.readouterr().err


@pytest.mark.parametrize("hashes", [False, True])
def test_a_wrong_hash_is_refused(
    hashes: bool, index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    index.hashes = hashes
    locked = replace(artifact, sha256="0" * 64)
    with pytest.raises(ToolError) as caught:
        get_from(pip_config(index))(locked, paths)
    message = str(caught.value)
    assert message.startswith(f"{NAME}: expected")
    assert "0" * 64 in message
    assert artifact.sha256 in message
    assert "index-url (http://127.0.0.1" in message
    assert left(paths) == set()
    # The hash on the page is enough to refuse without a download.
    assert len(index.downloads(NAME)) == (0 if hashes else 1)


@pytest.mark.parametrize("size", [len(DATA) - 1, len(DATA) + 1])
def test_a_wrong_size_is_refused(
    size: int, index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    with pytest.raises(ToolError, match=f"it offers {len(DATA)} bytes"):
        get_from(pip_config(index))(replace(artifact, size=size), paths)
    assert left(paths) == set()


def test_a_transfer_that_breaks_off_is_tried_again_from_the_start(
    index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    index.faults[NAME] = [Fault(send=100_000), Fault(send=0)]
    assert get_from(pip_config(index))(artifact, paths).read_bytes() == DATA
    assert len(index.downloads(NAME)) == 3


def test_a_transfer_that_keeps_breaking_off_is_an_error(
    index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    index.faults[NAME] = [Fault(send=100_000)] * 3
    with pytest.raises(ToolError, match=r"index-url .* broke off"):
        get_from(pip_config(index, retries=2))(artifact, paths)
    assert left(paths) == set()


@pytest.mark.parametrize("status", [500, 503, 429])
def test_a_server_in_trouble_is_asked_again(
    status: int, index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    index.faults[NAME] = [Fault(status=status), Fault(status=status)]
    assert get_from(pip_config(index))(artifact, paths).read_bytes() == DATA


@pytest.mark.parametrize("status", [403, 404])
def test_a_file_that_is_refused_is_not_asked_for_again(
    status: int, index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    index.faults[NAME] = [Fault(status=status)]
    with pytest.raises(ToolError, match=f"it answered {status}"):
        get_from(pip_config(index))(artifact, paths)
    assert len(index.downloads(NAME)) == 1


def test_an_index_that_is_down_is_named_by_its_setting(
    index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    index.stop()
    with pytest.raises(ToolError) as caught:
        get_from(pip_config(index, retries=1))(artifact, paths)
    message = str(caught.value)
    assert message.startswith(f"{NAME}: expected")
    assert f"index-url ({index.url}): no connection" in message
    assert "pip config list" in message
    assert "\n" not in message


def test_another_source_helps_when_the_first_fails(
    index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    down = Source("index-url", "http://127.0.0.1:9/simple")
    extra = Source("extra-index-url", index.url)
    get = get_from(PipConfig((down, extra), retries=0))
    assert get(artifact, paths).read_bytes() == DATA


def test_find_links_may_be_a_folder(
    artifact: Artifact, paths: Paths, tmp_path: Path
) -> None:
    wheels = tmp_path / "some wheels"
    wheels.mkdir()
    (wheels / NAME).write_bytes(DATA)
    (wheels / "notes.txt").write_text("")
    for location in (str(wheels), wheels.as_uri()):
        cached = get_from(source("find-links", location))(artifact, paths)
        assert cached.read_bytes() == DATA
        cached.unlink()


def test_an_index_may_be_a_folder(
    index: SampleIndex, artifact: Artifact, paths: Paths, tmp_path: Path
) -> None:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / NAME).write_bytes(DATA)
    page = tmp_path / "simple" / "vllm" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_bytes(index.page("vllm")[1])
    get = get_from(source("extra-index-url", (tmp_path / "simple").as_uri()))
    assert get(artifact, paths).read_bytes() == DATA
    with pytest.raises(ToolError, match="it does not list the file"):
        get(replace(artifact, project="other", sha256="0" * 64), paths)


def test_a_folder_that_is_not_there_is_an_error(
    artifact: Artifact, paths: Paths
) -> None:
    for setting in ("find-links", "extra-index-url"):
        with pytest.raises(ToolError, match=f"{setting} .*there is no such folder"):
            get_from(source(setting, "file:///does/not/exist"))(artifact, paths)


def test_a_login_is_used_and_never_shown(
    index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    url = index.url.replace("http://", "http://me:s%40cret@")
    get = get_from(source("index-url", url))
    get(artifact, paths)
    login = "Basic " + base64.b64encode(b"me:s@cret").decode()
    assert {request.login for request in index.requests} == {login}
    index.stop()
    paths.cached(artifact.sha256, NAME).unlink()
    with pytest.raises(ToolError) as caught:
        get(artifact, paths)
    error: BaseException | None = caught.value
    assert "cret" not in str(error)


def test_an_answer_that_is_no_page_is_an_error(
    index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    index.json = True
    index.page = lambda project: (  # type: ignore[method-assign]  # a broken server
        "application/vnd.pypi.simple.v1+json",
        b"[]",
    )
    with pytest.raises(ToolError, match="not a page of the simple API"):
        get_from(pip_config(index))(artifact, paths)


def test_a_proxy_of_pip_is_used(
    index: SampleIndex, artifact: Artifact, paths: Paths
) -> None:
    # A proxy gets the whole URL as the path; our index does not know that path.
    config = PipConfig(
        (Source("index-url", "http://elsewhere.invalid/simple"),),
        proxy=f"http://127.0.0.1:{index.port}",
        retries=0,
    )
    with pytest.raises(ToolError, match="does not list the file"):
        get_from(config)(artifact, paths)
    assert index.requests[0].path == "http://elsewhere.invalid/simple/vllm/"


def test_certificates_are_those_of_pip() -> None:
    config = PipConfig((), cert="/ca.pem", trusted_hosts=frozenset({"free", "h:8443"}))
    index = Index(config)
    assert index.verify("https://host/simple") == "/ca.pem"
    assert index.verify("https://free/simple") is False
    assert index.verify("https://h:8443/simple") is False
    assert Index(PipConfig(())).verify("https://host/") is True
