"""What half and twice of each number of the rule does: bench/results/constants.json.

::

    python bench/constants.py

Any Python with tqdm does, PyPy too. The numbers are all literals but 0, 1 and 2 in the
policies, dispatch and measuring, with what is said of them there.
"""

import ast
import importlib
import platform
import statistics
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import simulated
from deployment_grid import deployments
from grids import CODE, CONV, Cell, Load, Window, on_trace
from simulated import ROOT, Task, execute, write
from tqdm import tqdm
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.results import versions
from vllm.v1.core.sched.balance.policies.adaptive import AdaptiveParameters

BALANCE = ROOT / "vllm" / "v1" / "core" / "sched" / "balance"
RULE = (
    *(*sorted(BALANCE.glob("policies/*.py")), *sorted(BALANCE.glob("measure/*.py"))),
    *(BALANCE / f"{name}.py" for name in ("dispatch", "context_dispatch")),
    BALANCE / "prefix_memory.py",
)
PACKAGE = "vllm.v1.core.sched.balance"
WINDOW = AdaptiveParameters.window
OF_OTHERS = {"timeout_steps", "batching_steps", "SECONDS"}
"""Numbers of the rule `align`, which are TensorRT-LLM's, and a unit: not varied."""


class Constant(NamedTuple):
    """A number of the rule."""

    module: str
    name: str
    value: float
    about: str
    """Its unit and reason, as the code says them."""


def module(path: Path) -> str:
    """Its name below `vllm.v1.core.sched.balance`."""
    return ".".join(path.relative_to(BALANCE).with_suffix("").parts)


def number(node: ast.AST | None) -> Any:
    """What a literal says, if it is a number but 0, 1 and 2; else None."""
    value = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
    return value if type(value) in (int, float) and value not in (0, 1, 2) else None


def literals() -> int:
    """How many such numbers there are."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in RULE]
    return sum(number(node) is not None for tree in trees for node in ast.walk(tree))


def constants() -> Iterator[Constant]:
    """Those that have a name and a docstring, in modules and classes."""
    for path in RULE:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        classes = [each.body for each in tree.body if isinstance(each, ast.ClassDef)]
        for body in (tree.body, *classes):
            for node, after in pairwise(body):
                if isinstance(node, ast.Assign | ast.AnnAssign):
                    value = number(node.value)
                    if value is not None and isinstance(after, ast.Expr):
                        target = getattr(node, "target", None) or node.targets[0]
                        about = " ".join(ast.literal_eval(after.value).split())
                        yield Constant(module(path), ast.unparse(target), value, about)


def cells() -> list[Cell]:
    """Two traces at 60 % of what off serves, and three deployments on A2."""
    made = []
    for window in (Window(*CODE, 4500, 1500), Window(*CONV, 9000, 1500)):
        cell = on_trace(window, "phi 0.3", Load(0.6))
        served = execute(simulated.capacity(cell, Load(0.6)))[1]["requests_per_s"]
        faster = 0.6 * served / cell.own_rate
        traffic = ClientTraffic(self_timed=True, rate_multiplier=faster)
        made.append(replace(cell, scenario=replace(cell.scenario, traffic=traffic)))
    clients = ("A2", 1, 14), ("A2", 1, 32)
    labels = "cost", "times", "clients"
    return made + [
        cell
        for cell in deployments()
        if tuple(cell.labels[label] for label in labels) in clients
    ]


def figures(cells: list[Cell], window: float) -> tuple[float, float]:
    """Geometric means of the mean end-to-end time and of TTFT p99, in ms."""
    policy = f"adaptive:window={window:g}"
    runs = [execute(Task(cell.scenario, policy, 0))[1] for cell in cells]
    names = "mean_e2el_ms", "p99_ttft_ms"
    mean, tail = (statistics.geometric_mean(r[name] for r in runs) for name in names)
    return mean, tail


def varied(constant: Constant, factor: float, cells: list[Cell]) -> tuple[float, float]:
    """The figures with the constant times the factor, wherever it was imported."""
    changed = type(constant.value)(constant.value * factor)
    if constant.name == "window":
        return figures(cells, changed)
    paths = [path for path in RULE if "measure" not in path.parts]
    owners: list[Any] = [
        importlib.import_module(f"{PACKAGE}.{module(p)}") for p in paths
    ]
    owners += [
        each for o in owners for each in vars(o).values() if isinstance(each, type)
    ]
    names = {constant.name, constant.name.lower()}  # a class may have it, too
    places = [(each, name) for each in owners for name in names & vars(each).keys()]
    places = [(o, name) for o, name in places if vars(o)[name] == constant.value]
    for owner, name in places:
        setattr(owner, name, changed)
    try:
        return figures(cells, WINDOW)
    finally:
        for owner, name in places:
            setattr(owner, name, constant.value)


def main() -> None:
    """Makes the table."""
    where, found = cells(), []
    mean, tail = figures(where, WINDOW)
    for constant in tqdm(list(constants()), unit="constant"):
        row = constant._asdict()
        if not constant.module.startswith("measure") and constant.name not in OF_OTHERS:
            for name, factor in (("half", 0.5), ("twice", 2)):
                means, tails = varied(constant, factor, where)
                row[name] = [round(means / mean - 1, 4), round(tails / tail - 1, 4)]
        found.append(row)
    head = {"command": "python bench/constants.py", "versions": versions()}
    head |= {"interpreter": platform.python_implementation()}
    write(ROOT / "bench" / "results" / "constants.json", head, found)


if __name__ == "__main__":
    main()
