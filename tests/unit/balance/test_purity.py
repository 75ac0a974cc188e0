"""Policies know nothing but rows: no engine, no clock, no chance, no files."""

import ast
import importlib

import pytest
from snapshots import Ranks

from conftest import CORE
from vllm_balance.core.policies import create_policy
from vllm_balance.core.policies.cost import StepCost

PURE = sorted(CORE.glob("**/*.py"))
ALLOWED = {
    "bisect",
    "collections",
    "collections.abc",
    "dataclasses",
    "itertools",
    "math",
    "inspect",
    "operator",
    "sys",
    "typing",
}


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.stem)
def test_all_is_pure_and_the_same_on_every_host(path):
    """C libraries differ in powers and exponentials; IEEE 754 fixes roots."""
    siblings = {each.stem for each in path.parent.rglob("*.py")}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            assert {alias.name for alias in node.names} <= ALLOWED
        elif isinstance(node, ast.ImportFrom):
            assert node.level <= 1, ast.unparse(node)
            allowed = siblings if node.level else ALLOWED
            name = node.module.rpartition(".")[2] if node.level else node.module
            assert name in allowed, ast.unparse(node)
        elif isinstance(node, ast.Attribute) and ast.unparse(node.value) == "math":
            assert node.attr in {"ceil", "fsum", "inf", "sqrt"}
        assert not isinstance(node, ast.Pow), path


def whole_sum(numbers):
    """As Python's, which adds floats in one way until 3.11, and in another since."""
    numbers = list(numbers)
    assert all(isinstance(each, int) for each in numbers), numbers
    return sum(numbers)


def test_floats_are_added_by_fsum(monkeypatch):
    for path in PURE:
        name = ".".join(path.relative_to(CORE).with_suffix("").parts)
        module = importlib.import_module(f"vllm_balance.core.{name}")
        monkeypatch.setattr(module, "sum", whole_sum, raising=False)
    monkeypatch.setattr(StepCost, "per_attended", lambda cost, largest: 1e-3)
    policy, ranks = create_policy("adaptive"), Ranks(4)
    reasons = set()
    for number in range(1000):
        if number % 2 == 0:
            ranks.arrive(number % 3, prompt=100 + number, output=60)
        row = ranks.snapshot()
        rows = row._replace(
            pending_attended=tuple(n * n // 2 for n in row.pending_tokens),
            prefill_attended=tuple(n * n // 2 for n in row.prefill_tokens),
        )
        decision = policy.decide(rows)
        reasons.add(decision.reason)
        ranks.advance(decision)
    assert {"gain", "waiting_cost"} <= reasons
