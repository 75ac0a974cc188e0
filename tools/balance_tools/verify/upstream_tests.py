"""Upstream's own tests of the modules that the series touches, with and without it."""

from __future__ import annotations

import ast
import hashlib
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from balance_tools.drift.symbols import imports, module_of
from balance_tools.files import remove_tree
from balance_tools.verify.pytest_file import PASSED

# Folders of upstream's tests that need neither a GPU nor weights.
FOLDERS = ("tests/v1/core", "tests/v1/metrics", "tests/config", "tests/engine")
PLAIN, OFF, ON = "unpatched", "patched, off", "patched, on"

SWITCH_ON = "switch_balance_on"
# A pytest plugin that gives every scheduler a gate, which unit tests never make.
SWITCH_ON_TEXT = '''\
"""Give every scheduler of a test a balance gate with the policy cap."""

import vllm.v1.core.sched.scheduler as scheduler
from vllm.v1.core.sched.balance.rank.group import RowExchange
from vllm.v1.core.sched.balance.rank.gate import BalanceGate
from vllm.v1.core.sched.balance.rank.metrics import BalanceStats
from vllm.v1.core.sched.balance.rank.timing import Timing


def create_balance_gate(self, config):
    timing = Timing(RowExchange(timeout=1.0))
    return BalanceGate(self, "cap", timing, BalanceStats(policy="cap"))


scheduler.create_balance_gate = create_balance_gate
'''

# Wait for one for ever, inside Ray, where no time limit of pytest reaches.
NEED_A_GPU = ("tests/v1/metrics/test_ray_metrics.py",)


def select(tree: Path, touched: Sequence[str]) -> list[str]:
    """Return the test files of an sdist that use a touched module, sorted.

    A test uses what it imports, and what the helpers beside the tests import for it.
    """
    modules = {module_of(path) for path in touched}
    selected = []
    for folder in FOLDERS:
        for path in sorted((tree / folder).rglob("test_*.py")):
            name = path.relative_to(tree).as_posix()
            if name not in NEED_A_GPU and _uses(tree, name, modules, helpers=True):
                selected.append(name)
    return selected


def _uses(tree: Path, name: str, modules: set[str], helpers: bool) -> bool:
    parsed = ast.parse((tree / name).read_bytes())
    symbols = set(imports(parsed, module_of(name), name).values())
    symbols |= {
        alias.name
        for node in ast.walk(parsed)
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    if any({symbol, symbol.rpartition(".")[0]} & modules for symbol in symbols):
        return True
    # The modules beside the tests that symbols come from.
    names = {s.rpartition(".")[0] for s in symbols if s.startswith("tests.")}
    files = {f"{name.replace('.', '/')}.py" for name in names}
    return helpers and any(
        _uses(tree, file, modules, helpers=False)
        for file in files
        if (tree / file).is_file()
    )


def copy_tests(tree: Path, folder: Path) -> None:
    """Copy the tests of an sdist, and none of its source, with our plugin.

    With upstream's settings of pytest, too; else it would find those of this project.
    """
    remove_tree(folder)
    shutil.copytree(tree / "tests", folder / "tests", symlinks=True)
    shutil.copy2(tree / "pyproject.toml", folder)
    (folder / f"{SWITCH_ON}.py").write_text(SWITCH_ON_TEXT)


def newly_failing(results: Mapping[str, Mapping[str, str]]) -> list[str]:
    """Return every test that passes unpatched and does not pass with the patches.

    If none passes unpatched, nothing could be compared; that is returned, too.
    """
    failing = []
    if PASSED not in results[PLAIN].values():
        failing.append("no test of upstream's passes without the patches")
    for name, result in results[PLAIN].items():
        for setup, outcomes in results.items():
            if result == PASSED and outcomes.get(name) != PASSED:
                failing.append(f"{name}: {outcomes.get(name, 'not run')} ({setup})")
    return failing


def _config(model_type: str, architecture: str, **sizes: Any) -> dict[str, Any]:
    names = {"model_type": model_type, "architectures": [architecture]}
    return {**names, "dtype": "float16", **sizes}


# The models that upstream's scheduler tests name, in their published sizes, where these
# are not the defaults of transformers. Weights and tokenizers are missing; tests that
# need them fail with and without our patches alike, and do not count.
MODELS = {
    "facebook/opt-125m": _config("opt", "OPTForCausalLM"),
    "facebook/opt-350m": _config(
        "opt",
        "OPTForCausalLM",
        hidden_size=1024,
        word_embed_proj_dim=512,
        num_hidden_layers=24,
        num_attention_heads=16,
        ffn_dim=4096,
        do_layer_norm_before=False,
    ),
    "Qwen/Qwen3-0.6B": _config(
        "qwen3",
        "Qwen3ForCausalLM",
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        max_position_embeddings=40960,
        tie_word_embeddings=True,
    ),
    "Qwen/Qwen1.5-7B": _config("qwen2", "Qwen2ForCausalLM", intermediate_size=11008),
}


def write_hub(folder: Path) -> None:
    for name, config in MODELS.items():
        model = folder / "hub" / f"models--{name.replace('/', '--')}"
        revision = hashlib.sha1(name.encode()).hexdigest()
        snapshot = model / "snapshots" / revision
        snapshot.mkdir(parents=True, exist_ok=True)
        (model / "refs").mkdir(exist_ok=True)
        (model / "refs" / "main").write_text(revision)
        (snapshot / "config.json").write_text(json.dumps(config, indent=1))
