"""A target in which a name that we use is gone is refused, by that name."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from balance_tools.contract.check import missing, vanished_symbols
from balance_tools.contract.fit import (
    Pin,
    findings,
    is_later,
    make_side,
    misfits,
    read_pin,
    relied_on,
)
from balance_tools.contract.names import Names
from balance_tools.contract.uses import EITHER, OPTIONAL, Use
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
        words, classes = old._texts
        classes = {n: m for n, m in classes.items() if n != word}
        self.__dict__["_texts"] = (words - {word}, classes)


@pytest.fixture(scope="module")
def pin() -> Pin:
    paths = Paths.find()
    series = load_series(paths.patches("vllm"))
    found = read_pin(paths, load_lock(paths.lock), series)
    assert found is not None
    return found


def alone(uses: tuple[Use, ...], old: Names) -> Iterator[tuple[str, list[Use]]]:
    """Each name, with its uses; of several that one will do for, all that exist."""
    names: dict[str, list[Use]] = {}
    for use in uses:
        there = [n for n in use.names if use.kind != EITHER or old.has(n)]
        assert len(there) == 1, use
        names.setdefault(there[0].rpartition(".")[2], []).append(use)
    yield from names.items()


@pytest.mark.timeout(900)
def test_each_name_renamed_is_refused_by_name(pin: Pin) -> None:
    old = Names(Modules(pin.tree))
    required = tuple(use for use in pin.expected.uses if use.kind != OPTIONAL)
    names = dict(alone(required, old))
    kinds = {use.kind for uses in names.values() for use in uses}
    assert kinds == {"import", "attribute", "override", "either", "word"}
    assert set(names) >= OF_THE_GATE | OF_THE_DISPATCH
    assert missing(required, old, old) == []
    for name, uses in names.items():
        found = missing(uses, old, RenamedNames(old, name))
        assert len(found) == len(uses), (name, uses)
        assert all(name in str(finding) for finding in found)
        assert all(finding.file and finding.line for finding in found)


def test_a_name_that_hasattr_asks_for_is_not_required(pin: Pin) -> None:
    """Although mypy looks it up to narrow the type, without a line."""
    uses = [use for use in pin.expected.uses if "skipped_waiting" in use.names[0]]
    assert {use.kind for use in uses} == {EITHER, OPTIONAL}
    assert all(use.line > 0 for use in pin.expected.uses)


def test_a_name_of_later_releases_is_missed_there_alone(pin: Pin) -> None:
    optional = [use for use in pin.expected.uses if use.kind == OPTIONAL]
    assert ("prefill_capacity_bound",) in {use.names for use in optional}
    old = Names(Modules(pin.tree))
    found = missing(optional, old, old, forward=True)
    assert sum("prefill_capacity_bound" in str(one) for one in found) == 1
    assert missing(optional, old, old, forward=False) == []


@pytest.mark.timeout(600)
def test_a_patch_release_of_the_pin_fits_if_nothing_changed(
    pin: Pin, tmp_path: Path
) -> None:
    """Names of later releases are not wanted of it; one that we need still is."""
    series = load_series(pin.paths.patches("vllm"))
    assert findings(pin, series, pin.tree, tmp_path / "root", "0.23.1") == ()
    old, forward = Names(Modules(pin.tree)), is_later("0.23.1", pin.version)
    without = RenamedNames(old, "max_num_running_reqs")
    assert missing(pin.expected.uses, old, old, forward=forward) == []
    assert missing(pin.expected.uses, old, without, forward=forward)


def test_each_relied_on_symbol_renamed_is_refused_by_name(pin: Pin) -> None:
    old = Names(Modules(pin.tree))
    symbols = relied_on(load_series(pin.paths.patches("vllm")))
    assert len(symbols) > 10
    assert vanished_symbols(symbols, old, old) == []
    for patch, either in symbols:
        word = next(n for n in either if old.modules.find(n)).rpartition(".")[2]
        found = vanished_symbols([(patch, either)], old, RenamedNames(old, word))
        assert [word in str(finding) for finding in found] == [True]


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
    patched = dict(patched_files(series, pin.tree))
    core = patched["vllm/v1/engine/core.py"]
    assert core is not None
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
    side = make_side(tmp_path / "root", tree, patched, pin.paths.root, pin.files)
    found = misfits(pin.expected, series, pin.tree, side)
    said = [str(finding) for finding in found]
    assert any("liveness.py" in one and "kill_process_tree" in one for one in said)
    assert any("core.py" in one and "ready_msg" in one for one in said), said
    assert len(found) < 10
