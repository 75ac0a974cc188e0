import base64
import os
from dataclasses import dataclass, replace

import pytest

from balance_tools.errors import ToolError
from balance_tools.paths import Paths
from balance_tools.upstream.fetch import fetch
from balance_tools.upstream.lock import Artifact
from index_samples import Fault, SampleIndex

NAME = "vllm-0.23.0.tar.gz"
DATA = os.urandom(300_000)


@dataclass
class Case:
    """A locked file, the index that has it, and a cache."""

    index: SampleIndex
    artifact: Artifact
    paths: Paths
    patch: pytest.MonkeyPatch

    def get(self, **changed):
        """Fetch it, or as another one is locked."""
        wanted = replace(self.artifact, **changed)  # type: ignore[arg-type]
        return fetch(wanted, self.paths).read_bytes()

    def refusal(self, **changed):
        """Why it is not fetched; nothing is left in the cache."""
        with pytest.raises(ToolError) as caught:
            self.get(**changed)
        assert self.left() == set()
        return str(caught.value)

    def pip(self, **settings):
        for name, value in settings.items():
            self.patch.setenv(f"PIP_{name.upper()}", value)

    def left(self):
        """What lies in the cache, lock files left out."""
        files = (path for path in self.paths.cache.rglob("*") if path.is_file())
        return {path.name for path in files} - {".lock"}

    @property
    def cached(self):
        return self.paths.cached(self.artifact.sha256, NAME)

    def fails(self, *faults):
        self.index.faults[NAME] = list(faults)

    @property
    def downloads(self):
        return len(self.index.downloads(NAME))


@pytest.fixture
def case(index, tmp_path, monkeypatch):
    return Case(index, index.add(NAME, DATA), Paths(tmp_path), monkeypatch)


def test_a_file_is_found_through_relative_links_and_kept(case):
    assert case.get() == DATA == case.cached.read_bytes()
    assert case.left() == {NAME}
    case.index.stop()
    assert case.get() == DATA
    assert case.downloads == 1


def test_a_damaged_file_in_the_cache_is_fetched_again(case, capsys):
    case.get()
    case.cached.write_bytes(DATA[:-1] + b"?")
    assert case.get() == DATA
    assert f"{case.cached}: damaged" in capsys.readouterr().err


@pytest.mark.parametrize("hashes", [False, True])
def test_a_wrong_hash_is_refused(hashes, case):
    case.index.hashes = hashes
    message = case.refusal(sha256="0" * 64)
    assert message.startswith(f"{NAME}: expected")
    assert "0" * 64 in message
    assert case.artifact.sha256 in message
    assert "index-url (http://127.0.0.1" in message
    # The hash on the page is enough to refuse without a download.
    assert case.downloads == (0 if hashes else 1)


def test_a_wrong_size_is_refused(case):
    for size in (len(DATA) - 1, len(DATA) + 1):
        assert f"it offers {len(DATA)} bytes" in case.refusal(size=size)


@pytest.mark.parametrize(
    ("faults", "downloads", "says"),
    [
        ([{"send": 100_000}, {"send": 0}], 3, ""),
        ([{"send": 100_000}] * 3, 3, " broke off"),
        ([{"status": 503}], 2, ""),
        ([{"status": 403}], 1, "it answered 403"),
    ],
)
def test_what_breaks_off_is_asked_for_again_from_the_start(
    faults, downloads, says, case
):
    case.fails(*(Fault(**fault) for fault in faults))
    if says:
        assert says in case.refusal()
    else:
        assert case.get() == DATA
    assert case.downloads == downloads


def test_an_index_that_is_down_is_named_by_its_setting(case):
    case.index.stop()
    assert f"index-url ({case.index.url}): no connection" in case.refusal()


def test_another_source_helps_when_the_first_fails(case):
    case.pip(index_url="http://127.0.0.1:9/simple", extra_index_url=case.index.url)
    assert case.get() == DATA


def test_find_links_may_be_a_folder(case, tmp_path):
    (wheels := tmp_path / "wheels").mkdir()
    (wheels / NAME).write_bytes(DATA)
    for location in (str(wheels), wheels.as_uri()):
        case.pip(no_index="1", find_links=location)
        assert case.get() == DATA
        case.cached.unlink()


def test_an_index_may_be_a_folder(case, tmp_path):
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / NAME).write_bytes(DATA)
    page = tmp_path / "simple" / "vllm" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_bytes(case.index.page("vllm"))
    case.pip(index_url=(tmp_path / "simple").as_uri())
    assert case.get() == DATA
    case.cached.unlink()
    assert "it does not list the file" in case.refusal(project="other")


def test_a_folder_that_is_not_there_is_an_error(case):
    case.pip(index_url="file:///does/not/exist", find_links="file:///nor/this")
    said = case.refusal()
    for named in (
        "index-url (file:///does/not/exist)",
        "find-links (file:///nor/this)",
    ):
        assert f"{named}: there is no such folder" in said


def test_a_login_is_used_and_never_shown(case):
    case.pip(index_url=case.index.url.replace("http://", "http://me:s%40cret@"))
    case.get()
    login = "Basic " + base64.b64encode(b"me:s@cret").decode()
    assert {request.login for request in case.index.requests} == {login}
    case.index.stop()
    case.cached.unlink()
    assert "cret" not in case.refusal()


def test_an_answer_that_is_no_page_is_an_error(case):
    case.index.content_type = "text/plain"
    assert "not a page of the simple API" in case.refusal()


def test_a_proxy_of_pip_is_used(case):
    # A proxy gets the whole URL as the path; our index does not know that path.
    case.pip(index_url="http://elsewhere.invalid/simple")
    case.pip(proxy=f"http://127.0.0.1:{case.index.port}")
    assert "does not list the file" in case.refusal()
    assert case.index.requests[0].path == "http://elsewhere.invalid/simple/vllm/"
