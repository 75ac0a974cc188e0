"""Ranks that would decide differently are told apart, by what differs."""

import importlib.util
import shutil

import pytest
from balance.identity import code_version, difference

from conftest import FOLDER

MINE = {"policy": "adaptive", "dispatch": None, "code": "abc"}


def version_of(folder):
    spec = importlib.util.spec_from_file_location("copied", folder / "identity.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.code_version()


def test_the_version_is_that_of_the_files_wherever_they_are(tmp_path):
    copy = shutil.copytree(
        FOLDER, tmp_path / "elsewhere", ignore=shutil.ignore_patterns("__pycache__")
    )
    (copy / "notes.txt").write_text("no code")
    assert version_of(copy) == code_version()


@pytest.mark.parametrize(
    "name", sorted(str(path.relative_to(FOLDER)) for path in FOLDER.rglob("*.py"))
)
def test_an_edit_of_any_file_is_another_version(tmp_path, name):
    copy = shutil.copytree(FOLDER, tmp_path / "edited")
    with (copy / name).open("a") as file:
        file.write("\n")
    assert version_of(copy) != code_version()


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"policy": "cap"}, "balance cap, the front-end with --data-parallel-balance "),
        ({"dispatch": "tokens"}, "-dispatch tokens, the front-end with no --data-par"),
        ({"code": "def"}, "version def of the balance code, the front-end has abc"),
    ],
)
def test_the_sentence_says_what_differs(other, words):
    sentence = difference(3, MINE | other, "the front-end", MINE)
    assert sentence.startswith("Data parallel rank 3 ")
    assert words in sentence


def test_equal_ranks_and_ranks_that_decide_nothing_are_not_refused():
    assert difference(3, dict(MINE), "the front-end", MINE) is None
    off = MINE | {"policy": "off"}
    assert difference(3, off | {"code": "def"}, "the front-end", off) is None
    assert difference(3, off | {"dispatch": "vllm"}, "the front-end", off) is not None
