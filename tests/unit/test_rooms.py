"""Which rooms import which: no arrow runs back up, and only one runs into vllm/."""

import ast
import re
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[2]
BALANCE = "vllm.v1.core.sched.balance"
OURS = ("vllm_balance", BALANCE, "vllm.fixes", "balance_tools")
BELOW = {
    "vllm_balance.core": set(),
    "vllm_balance.code_hash": set(),
    "vllm_balance.errors": set(),
    "vllm_balance.policy": {"vllm_balance.core", "vllm_balance.errors"},
    "vllm_balance.server_api": {"vllm_balance.errors", "vllm_balance.policy"},
    "vllm_balance.simulator": {
        "vllm_balance.code_hash",
        "vllm_balance.cores",
        "vllm_balance.core",
        "vllm_balance.errors",
        "vllm_balance.server_api",
    },
    "vllm_balance.trial": {
        "vllm_balance.build_info",
        "vllm_balance.cores",
        "vllm_balance.doctor",
        "vllm_balance.errors",
        "vllm_balance.policy",
        "vllm_balance.server_api",
        "vllm_balance.simulator",
    },
    "vllm_balance.doctor": {
        "vllm_balance.build_info",
        "vllm_balance.installed",
        "vllm_balance.start",
        "vllm_balance.verify",
        BALANCE,
    },
    "vllm.fixes": set(),
    BALANCE: {
        "vllm_balance.code_hash",
        "vllm_balance.core",
        "vllm_balance.policy",
        "vllm.fixes",
    },
}
"""By room what it may import of ours; others may import any but tools."""


def modules(folder):
    """The files of a room, by their dotted names."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield path, tuple(part for part in parts if part != "__init__")


@cache
def imported(path, module):
    """The dotted names that a file imports, within functions too."""
    package, found = module if path.name == "__init__.py" else module[:-1], set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*base, *([node.module] if node.module else [])])
            found |= {f"{base}.{alias.name}" for alias in node.names}
    return found


def room_of(name):
    """Of ours: `vllm_balance` and `balance_tools` by their parts, others whole."""
    for room in OURS:
        if name == room or name.startswith(f"{room}."):
            whole = room in (BALANCE, "vllm.fixes")
            return room if whole else ".".join(name.split(".")[:2])
    return None


def arrows(*folders):
    found = {}
    for folder in folders:
        for path, module in modules(folder):
            room = room_of(".".join(module[module[0] == "tools" :]))
            rooms = {room_of(name) for name in imported(path, module)}
            found.setdefault(room, set()).update(rooms - {room, None})
    return found


def test_each_room_imports_only_those_below_it():
    found = arrows("vllm_balance", BALANCE.replace(".", "/"), "vllm/fixes")
    assert found["vllm_balance.simulator"] == BELOW["vllm_balance.simulator"]
    for room, below in BELOW.items():
        assert found[room] <= below, room


def test_no_rooms_of_the_tools_import_each_other_in_a_circle():
    TopologicalSorter(arrows("tools")).prepare()


def test_no_parts_of_the_simulator_import_each_other_in_a_circle():
    parts, simulator = {}, ("vllm_balance", "simulator")
    for path, module in modules("/".join(simulator)):
        names = [tuple(name.split(".")) for name in imported(path, module)]
        found = {name[2] for name in names if name[:2] == simulator and name[2:]}
        (part,) = module[2:3] or ["__init__"]
        parts.setdefault(part, set()).update(found - {part})
    assert parts["rank"] >= {"requests", "step_time"}
    TopologicalSorter(parts).prepare()


def test_the_laboratory_imports_no_test():
    tests = {path.stem for path in (ROOT / "tests").rglob("*.py")}
    found = {n for path, module in modules("bench") for n in imported(path, module)}
    found = {name.partition(".")[0] for name in found}
    assert {"grids", "vllm_balance"} <= found
    assert found & tests == set()


def test_the_product_imports_neither_tools_nor_the_laboratory():
    others = {path.stem for path in (ROOT / "bench").glob("*") if path.name != "traces"}
    for folder in ("vllm_balance", BALANCE.replace(".", "/"), "vllm/fixes", "tools"):
        for path, module in modules(folder):
            tops = {name.partition(".")[0] for name in imported(path, module)}
            assert not tops & others, path
            if folder != "tools":
                assert "balance_tools" not in tops, path


def test_the_product_knows_no_rival():
    files = [path for path, _ in modules("vllm_balance/simulator")]
    assert len(files) > 30
    rival = re.compile(r'"(sglang-|atom|trtllm|0\.30)')
    assert [path for path in files if rival.search(path.read_text())] == []
