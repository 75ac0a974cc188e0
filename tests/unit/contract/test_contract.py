"""A target in which a name that we use is gone is refused, by that name."""

import ast
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest

from balance_tools.contract.check import missing, vanished_symbols
from balance_tools.contract.fit import Pin, findings, read_pin
from balance_tools.contract.names import EITHER, Names, Use
from balance_tools.drift.symbols import Modules
from balance_tools.paths import Paths
from balance_tools.series.apply import load_series, patched_files
from balance_tools.upstream.lock import load_lock

NEW = "renamed_by_upstream"
OF_THE_GATE = {"skipped_waiting", "is_prefill_chunk", "dp_group", "worker_cls"}
OF_THE_DISPATCH = {
    *("core_engines", "lb_engines", "client_count", "client_index"),
    *("pooling_params", "data_parallel_rank", "prompt_token_ids", "prompt_embeds"),
    *("outputs", "new_token_ids", "finished_requests", "DPLBAsyncMPClient"),
}


@dataclass
class Renamed(Modules):
    """The tree of the pin with one word renamed in every file, as far as it is read."""

    word: str = ""

    def module_path(self, dotted: str) -> str | None:
        return None if self.word in dotted.split(".") else super().module_path(dotted)

    def parse(self, path: str) -> ast.Module | None:
        if path not in self._parsed:
            text = (self.tree / path).read_bytes()
            pattern = rb"\b" + self.word.encode() + rb"\b"
            self._parsed[path] = ast.parse(re.sub(pattern, NEW.encode(), text))
        return self._parsed[path]


class RenamedNames(Names):
    """Names of a renamed tree; the words need not be read again."""

    def __init__(self, old: Names, word: str) -> None:
        super().__init__(Renamed(old.modules.tree, word=word))
        self.__dict__["words"] = old.words - {word}


@pytest.fixture(scope="module")
def pin() -> Pin:
    paths = Paths.find()
    series = load_series(paths.patches("vllm"))
    found = read_pin(paths, load_lock(paths.lock), series)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def old(pin: Pin) -> Names:
    return Names(Modules(pin.tree))


def test_a_renamed_name_is_refused_by_name(pin: Pin, old: Names) -> None:
    """Those of gate and dispatch, and the first of every kind."""
    names: dict[str, list[Use]] = {}
    kinds: dict[str, str] = {}
    for use in pin.uses:
        assert use.line > 0
        there = [n for n in use.names if use.kind != EITHER or n in old.words]
        assert len(there) == 1, use
        name = there[0].rpartition(".")[2]
        names.setdefault(name, []).append(use)
        kinds.setdefault(use.kind, name)
    assert set(kinds) == {"import", "attribute", "override", "either", "word"}
    assert missing(pin.uses, old) == []
    for name in OF_THE_GATE | OF_THE_DISPATCH | {*kinds.values()}:
        found = missing(names[name], RenamedNames(old, name))
        assert len(found) == len(names[name]), name
        assert all(name in str(finding) for finding in found)
        assert all(finding.file and finding.line for finding in found)


def test_each_relied_on_symbol_renamed_is_refused_by_name(old: Names) -> None:
    patches = load_series(Paths.find().patches("vllm")).patches
    assert vanished_symbols(patches, old) == []
    for patch in patches[:2]:
        for symbols in patch.header.relies_on:
            there = next(name for name in symbols if old.modules.find(name))
            word = there.rpartition(".")[2]
            found = vanished_symbols([patch], RenamedNames(old, word))
            assert any(there in finding.text for finding in found)


@pytest.mark.timeout(600)
def test_the_type_checker_sees_what_names_do_not_show(pin: Pin, tmp_path: Path) -> None:
    """A changed signature, a field that may be None, and a variable of a hook."""
    tree = tmp_path / "upstream"
    shutil.copytree(
        pin.tree / "vllm",
        tree / "vllm",
        ignore=shutil.ignore_patterns("*.json", "*.so"),
    )
    series = load_series(pin.paths.patches("vllm"))
    patched = patched_files(series, pin.tree)
    core = patched["vllm/v1/engine/core.py"]
    patched["vllm/v1/engine/core.py"] = core.replace(b"ready_msg = {", b"message = {")
    for path, before, after in (
        (
            "vllm/utils/system_utils.py",
            "kill_process_tree(pid: int",
            "kill_process_tree(pid: int, why: str",
        ),
        (
            "vllm/v1/request.py",
            "self.num_prompt_tokens =",
            "self.num_prompt_tokens: int | None =",
        ),
    ):
        text = (tree / path).read_text()
        assert before in text
        (tree / path).write_text(text.replace(before, after))
    found = findings(pin, series, patched, tree, tmp_path / "root")
    said = [str(finding) for finding in found]
    assert any("liveness.py" in one and "kill_process_tree" in one for one in said)
    assert any("core.py" in one and "ready_msg" in one for one in said), said
    assert len(found) < 10
