"""The tools are rooms, of which no two lead to each other."""

import ast
import re
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


def uses():
    """Room to the others that its modules import from."""
    found: dict[str, set[str]] = {room: set() for room in ROOMS}
    for path in TOOLS.glob("*/*.py"):
        room = path.parent.name
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                first, other, *_ = [*(node.module or "").split("."), ""]
                if first == TOOLS.name and other in ROOMS and other != room:
                    found[room].add(other)
    assert sum(map(len, found.values())) > len(ROOMS)
    return found


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


def reachable(graph, room):
    return graph[room].union(*(reachable(graph, other) for other in graph[room]))


def drawing(title):
    """Room to those to which an arrow leads, of the picture below that heading."""
    page = (TOOLS.parents[1] / "docs" / "architecture.md").read_text()
    section = page.split(f"## {title}")[1].split("```")[1]
    drawn: dict[str, set[str]] = {}
    for line in re.sub(r'\["[^"]*"\]', "", section).splitlines():
        for one, other in pairwise(line.split("-->")):
            drawn.setdefault(one.strip(), set()).add(other.strip())
            drawn.setdefault(other.strip(), set())
    return drawn


def used_in_balance(room):
    folder = TOOLS.parents[1] / "vllm/v1/core/sched/balance"
    files = [*folder.glob(f"{room}.py"), *folder.glob(f"{room}/*.py")]
    prefix = r"^\s*from (?:vllm\.v1\.core\.sched\.balance\.|\.+)(\w+)"
    return {each for f in files for each in re.findall(prefix, f.read_text(), re.M)}


def test_the_drawings_are_those_of_the_code():
    """Where an arrow led back, what can be reached would have no end."""
    drawn, balance = (
        drawing(f"The rooms of {each}") for each in ("the tools", "balance scheduling")
    )
    assert drawn.keys() == set(ROOMS)
    assert len(balance) > 10
    of_balance = {r: used_in_balance(r) & balance.keys() - {r} for r in balance}
    for rooms, real in ((drawn, uses()), (balance, of_balance)):
        for room, used in real.items():
            assert rooms[room] <= used <= reachable(rooms, room), room
