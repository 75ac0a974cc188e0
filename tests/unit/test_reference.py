"""The reference names each metric, reason and variable of the code, and no other."""

import ast
import re
from pathlib import Path

from vllm_balance.policy import KEY

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference.md").read_text(encoding="utf-8")
POLICIES = ROOT / "vllm_balance/core/policies"
METRICS = ROOT / "vllm/v1/core/sched/balance/rank/metrics.py"


def rows(section):
    """By the first cell the second one, of the table of a section."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\S+?)` \| (.*?) \|", text, re.M))


def test_each_metric_is_named():
    kinds = re.findall(r'^    "(\w+)": \(\s*_([A-Z]+),', METRICS.read_text(), re.M)
    assert rows("Metrics") == {
        f"vllm:dp_balance_{name}{'_total' * (kind == 'COUNTER')}": kind.lower()
        for name, kind in kinds
    }


def test_each_reason_of_a_decision_is_named():
    reasons = set()
    for path in POLICIES.glob("*.py"):
        tree = ast.parse(path.read_text())
        names = {
            node.targets[0].id: node.value.value
            for node in tree.body
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.keyword) and node.arg == "reason":
                parts = ast.walk(node.value)
                reasons |= {x.value for x in parts if isinstance(x, ast.Constant)}
            elif isinstance(node, ast.Assign) and "reason" in map(
                ast.unparse, node.targets
            ):
                reasons.add(node.value.value)
            elif isinstance(node, ast.Call) and "opened" in ast.unparse(node.func):
                reasons.add(names[ast.unparse(node.args[0])])
    assert rows("Reasons").keys() == reasons


def test_each_limit_is_named_with_its_default():
    limits = {}
    for path in (ROOT / "vllm/fixes").glob("*.py"):
        text = path.read_text()
        names = dict(re.findall(r'^(\w+) = "(VLLM_\w+)"', text, re.M))
        for name, value in re.findall(r'= limit\("?(\w+)"?, (.+?)\)', text):
            limits[names.get(name, name)] = f"{eval(value, {'_MB': 1 << 20}):,}"
    assert rows("Limits") == limits


def test_the_other_variables_are_read_by_us():
    key, health = rows("Other variables")
    assert key == KEY
    probe = (ROOT / "docker/healthcheck.py").read_text()
    assert f'environ.get("{health}"' in probe
