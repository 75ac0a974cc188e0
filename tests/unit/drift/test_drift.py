"""Drift and run-time replacements are read from the trees."""

from __future__ import annotations

import ast
from pathlib import Path

from balance_tools.drift.functions import drift, subjects
from balance_tools.drift.replaced import Replacement, overlaps, replacements
from balance_tools.drift.symbols import Change, Modules, change
from balance_tools.series.apply import load_series
from rebase_samples import ENGINE, make_root, replaced, write_tree

UPSTREAM = {
    "vllm/__init__.py": b"",
    "vllm/engine.py": ENGINE,
    "vllm/api.py": b"from vllm.engine import Engine\nLIMIT = 3\n",
}
SCHEDULE = ENGINE[ENGINE.index(b"    def schedule(") : ENGINE.index(b"    def sync(")]
PLUGIN = (
    b"import vllm.engine as core\n"
    b"from vllm.engine import Engine\n\n\n"
    b"class Ours(Engine):\n"
    + SCHEDULE.replace(b"            # Admit it.\n", b"            self.count += 1\n")
    + b"\n\ndef sync(self, executed):\n    return False\n\n\n"
    b"local = Engine\n"
    b"core.Engine = Ours\n"
    b"Engine.sync = sync\n"
    b'setattr(Engine, "drain", lambda self: None)\n'
)


def modules(folder: Path, files: dict[str, bytes]) -> Modules:
    return Modules(write_tree(folder, files))


def plugin(folder: Path) -> Modules:
    return modules(
        folder, {"vllm_ascend/__init__.py": b"", "vllm_ascend/patch.py": PLUGIN}
    )


def test_what_a_plugin_replaces_is_found(tmp_path: Path) -> None:
    found = replacements(plugin(tmp_path))
    assert [(one.symbol, one.by) for one in found] == [
        ("vllm.engine.Engine", "Ours"),
        ("vllm.engine.Engine.sync", "sync"),
        ("vllm.engine.Engine.drain", "lambda self: None"),
    ]
    assert found[0].path == "vllm_ascend/patch.py"


def test_overlap_is_the_symbol_what_holds_it_and_what_it_holds() -> None:
    found = [
        Replacement(name, "f", 1, "x")
        for name in ("vllm.a.B", "vllm.a.B.c", "vllm.a.Bc")
    ]
    assert [one.symbol for _, one in overlaps(["vllm.a.B.c"], found)] == [
        "vllm.a.B",
        "vllm.a.B.c",
    ]
    assert [one.symbol for _, one in overlaps(["vllm.a.B"], found)] == [
        "vllm.a.B",
        "vllm.a.B.c",
    ]


def test_symbols_are_found_through_imports_and_as_attributes(tmp_path: Path) -> None:
    tree = modules(tmp_path, UPSTREAM)
    for name in ("vllm.engine:Engine.loop", "vllm.api.Engine.loop"):
        symbol = tree.find(name)
        assert symbol is not None
        assert (symbol.path, symbol.scope) == ("vllm/engine.py", "Engine.loop")
    assert tree.find("vllm.engine.Engine.limit") is not None
    assert tree.find("vllm.api.LIMIT") is not None
    assert tree.find("vllm.engine.Engine.none") is None


def test_formatting_comments_and_docstrings_are_no_drift() -> None:
    old = ast.parse('def f(a):\n    """Doc."""\n    return (a +\n            1)\n')
    new = ast.parse("def f(a):\n    # Why.\n    return a + 1\n")
    assert change(old, new) == Change(0, 0)


def test_what_uses_names_of_ours_ranks_first(tmp_path: Path) -> None:
    root = make_root(tmp_path)
    series = load_series(root / "patches" / "vllm")
    changed = replaced(
        ENGINE,
        (
            b"            budget -= request.tokens\n",
            b"            budget -= request.size\n",
        ),
        (
            b"        self.limit = config.limit\n",
            b"        self.limit = 1\n        self.a = 2\n        self.b = 3\n",
        ),
    )
    old = modules(tmp_path / "old", UPSTREAM)
    new = modules(tmp_path / "new", {**UPSTREAM, "vllm/engine.py": changed})
    rows = drift(subjects(series, old), old, new)
    assert rows[0].change is None  # a Relies-On that names nothing real
    changed_rows = [row for row in rows if row.change is not None and row.change.lines]
    assert [(row.subject.symbol, row.named) for row in changed_rows] == [
        ("vllm.engine.Engine.__init__", ("config",)),
        ("vllm.engine.Engine.schedule", ("request",)),
    ]
    assert [row.change for row in changed_rows] == [Change(3, 1), Change(1, 1)]
