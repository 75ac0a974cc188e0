"""The hash in the results is of what a simulation decides with, and of nothing else."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from vllm.benchmarks.dp_balance import fingerprint

ROOT = Path(__file__).parents[2]
BALANCE = Path("vllm/v1/core/sched/balance")
IMPORTED = """
import pathlib, sys
import pure_vllm
from vllm.benchmarks.dp_balance import cli
for name, module in sys.modules.items():
    if name.startswith("vllm.v1.core.sched.balance"):
        print(module.__file__)
"""


def test_all_is_hashed_that_a_simulation_imports():
    script = [sys.executable, "-c", IMPORTED]
    helpers = {"PYTHONPATH": str(ROOT / "tests" / "unit" / "helpers")}
    done = subprocess.run(
        script, env=helpers, capture_output=True, text=True, check=True
    )
    imported = {Path(line).resolve() for line in done.stdout.splitlines()}
    named = {path for path in imported if path.name != "__init__.py"}
    hashed = {path.resolve() for path in fingerprint.sources()}
    assert hashed - {path for path in hashed if path.name == "__init__.py"} == named


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("policies/adaptive.py", True),
        ("measure/ages.py", True),
        ("server_end.py", False),
        ("group/exchange.py", False),
    ],
)
def test_a_space_in_a_docstring_counts_where_policies_are(
    name, counts, tmp_path, monkeypatch
):
    shutil.copytree(ROOT / BALANCE, tmp_path / BALANCE)
    monkeypatch.setattr(fingerprint, "_BALANCE", tmp_path / BALANCE)
    before = fingerprint.policies_fingerprint()
    path = tmp_path / BALANCE / name
    path.write_text(path.read_text().replace('"""', '""" ', 1))
    assert (fingerprint.policies_fingerprint() != before) == counts
