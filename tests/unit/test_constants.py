"""Each number of the rule stands in one place, with its unit and its reason."""

import importlib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_number_has_a_name_and_a_reason(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "bench"))
    table = importlib.import_module("constants")
    found = list(table.constants())
    assert table.literals() == len(found) <= 30, "one has no docstring"
    assert all(len(each.about.split()) > 3 for each in found)
    text = (ROOT / "docs" / "adaptive.md").read_text(encoding="utf-8")
    assert f"have {len(found)} numbers other than" in text
