"""The tools are rooms: entered by their doors, and no two lead to each other."""

import ast
import importlib
from graphlib import TopologicalSorter
from itertools import pairwise
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools" / "balance_tools"
ROOMS = sorted(path.parent.name for path in TOOLS.glob("*/__init__.py"))


PACKAGES = [
    TOOLS.parents[1] / "vllm_balance",
    *(TOOLS.parents[1] / "vllm").glob("**/*balance"),
]
"""Of the wheel: their modules are to know only what is below them."""


def imports() -> set[tuple[str, str, str]]:
    """(room, other room, module of it that is imported), of all modules."""
    found = set()
    for path in TOOLS.rglob("*.py"):
        room = path.relative_to(TOOLS).parts[0]
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom):
                continue
            first, _, rest = (node.module or "").partition(".")
            other, _, module = rest.partition(".")
            if first == TOOLS.name and other in ROOMS and other != room:
                modules = [module] if module else [name.name for name in node.names]
                found |= {(room, other, name) for name in modules}
    return found


def test_a_room_is_entered_by_its_doors():
    found = imports()
    assert len(found) > len(ROOMS)
    doors = {
        name: importlib.import_module(f"{TOOLS.name}.{name}").DOORS for name in ROOMS
    }
    assert [entry for entry in sorted(found) if entry[2] not in doors[entry[1]]] == []
    used = {(room, module) for _, room, module in found}
    assert {(room, door) for room in ROOMS for door in doors[room]} - used == set()


def test_suites_that_need_more_than_a_laptop_import_what_is_there():
    """Nothing else on this machine may run tests/image and tests/hosts."""
    root = TOOLS.parents[1]
    named = {
        (path, node.module)
        for folder in ("tests", "bench")
        for path in (root / folder).rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom)
        and (node.module or "").startswith(f"{TOOLS.name}.")
    }
    assert len({path for path, _ in named}) > len(ROOMS)
    gone = [
        (path, module)
        for path, module in named
        if not (file := root / "tools" / str(module).replace(".", "/")).is_dir()
        and not file.with_suffix(".py").is_file()
    ]
    assert gone == []


def test_no_room_leads_back_to_itself():
    graph: dict[str, set[str]] = {room: set() for room in ROOMS}
    for room, other, _ in imports():
        graph.setdefault(room, set()).add(other)
    assert set(TopologicalSorter(graph).static_order()) >= set(ROOMS)


@pytest.mark.parametrize("package", PACKAGES, ids=lambda each: each.name)
def test_no_module_of_the_wheel_leads_back_to_itself(package):
    """At the top of modules: what is imported for types alone is no matter."""
    name = ".".join(package.relative_to(TOOLS.parents[1]).parts)
    modules = {
        f"{name}.{'.'.join(path.relative_to(package).with_suffix('').parts)}": path
        for path in package.rglob("*.py")
    }
    graph: dict[str, set[str]] = {module: set() for module in modules}
    for module, path in modules.items():
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ImportFrom):
                parent = module.split(".")[: -node.level] if node.level else []
                source = ".".join([*parent, *filter(None, [node.module])])
                named = {source, *(f"{source}.{each.name}" for each in node.names)}
                graph[module] |= named & modules.keys()
    assert sum(map(len, graph.values())) > len(modules) / 2
    TopologicalSorter(graph).prepare()


def reachable(graph: dict[str, set[str]], room: str) -> set[str]:
    return graph[room].union(*(reachable(graph, other) for other in graph[room]))


def test_the_drawing_is_that_of_the_code():
    page = (TOOLS.parents[1] / "docs" / "architecture.md").read_text()
    drawn: dict[str, set[str]] = {room: set() for room in ROOMS}
    section = page.split("## The rooms of the tools")[1].split("```")[1]
    for line in section.splitlines()[2:]:
        for one, other in pairwise(line.split("-->")):
            drawn[one.strip()].add(other.strip())
    real: dict[str, set[str]] = {room: set() for room in ROOMS}
    for room, other, _ in imports():
        if room in real:  # the command line is in none
            real[room].add(other)
    for room in ROOMS:
        assert reachable(drawn, room) == reachable(real, room)
