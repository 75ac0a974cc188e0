"""Drift is read from the trees."""

import ast

from balance_tools.drift.report import drift, normalised
from balance_tools.drift.symbols import Modules
from balance_tools.series.apply import load_series
from rebase_samples import ENGINE, make_root, replaced, write_tree
from series_samples import HEADER

UPSTREAM = {
    "vllm/__init__.py": b"",
    "vllm/engine.py": ENGINE,
    "vllm/api.py": b"from vllm.engine import Engine\nLIMIT = 3\n",
}


def modules(folder, files):
    return Modules(write_tree(folder, files))


def test_symbols_are_found_through_imports_and_as_attributes(tmp_path):
    tree = modules(tmp_path, UPSTREAM)
    for name in ("vllm.engine:Engine.loop", "vllm.api.Engine.loop"):
        assert getattr(tree.find(name), "name", "") == "loop"
    assert tree.find("vllm.engine.Engine.limit") is not None
    assert tree.find("vllm.api.LIMIT") is not None
    assert tree.find("vllm.engine.Engine.none") is None


def test_formatting_comments_and_docstrings_are_no_drift():
    old = ast.parse('def f(a):\n    """Doc."""\n    return (a +\n            1)\n')
    new = ast.parse("def f(a):\n    # Why.\n    return a + 1\n")
    assert normalised(old) == normalised(new)


def test_what_uses_names_of_ours_comes_first(tmp_path):
    root = make_root(tmp_path, HEADER)
    series = load_series(root / "patches" / "vllm")
    limits = b"self.limit = 1\n        self.a = 2\n        self.b = 3"
    changed = replaced(
        ENGINE,
        (b"budget -= request.tokens", b"budget -= request.size"),
        (b"executed = self.step()", b"executed = self.one_step()"),
        (b"self.limit = config.limit", limits),
    )
    old = modules(tmp_path / "old", UPSTREAM)
    new = modules(tmp_path / "new", {**UPSTREAM, "vllm/engine.py": changed})
    lines = drift(series, old, new)
    assert [line for line in lines if line.startswith(("### ", "Hooks"))] == [
        "### vllm.engine.Engine.schedule (hold.patch)",
        "Hooks read request.",
        "### vllm.engine.Engine.__init__ (gate.patch)",
        "Hooks read config.",
        "### pkg.other.Engine.step (gate.patch, hold.patch, exchange.patch)",
        "### pkg.other.helper (gate.patch, hold.patch, exchange.patch)",
        "### vllm.engine.Engine.loop (exchange.patch)",
    ]
    assert "-        budget -= request.tokens" in lines
    assert "+        budget -= request.size" in lines
    assert lines.count("Not found in old.") == 2
