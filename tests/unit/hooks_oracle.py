"""Where the project's hooks must stand, told by hand.

Independent of the tools on purpose: plain `ast`, and facts about vLLM that a reader can
check. Each check returns what is wrong in a sentence.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

FuncDef = ast.FunctionDef | ast.AsyncFunctionDef


def function(tree: ast.Module, qualified: str) -> FuncDef:
    """Return the one function or method of this name."""
    *classes, name = qualified.split(".")
    body: list[ast.stmt] = tree.body
    for wanted in classes:
        (owner,) = [n for n in body if isinstance(n, ast.ClassDef) and n.name == wanted]
        body = owner.body
    (found,) = [n for n in body if isinstance(n, FuncDef) and n.name == name]
    return found


def blocks(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield every block of statements below a node."""
    for child in ast.walk(node):
        for field in ("body", "orelse", "finalbody"):
            block = getattr(child, field, None)
            if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                yield block


def block_with(node: ast.AST, test: Callable[[str], bool]) -> tuple[list[str], int]:
    """Return the block that holds the one simple statement that passes the test."""
    found = [
        ([ast.unparse(s) for s in block], index)
        for block in blocks(node)
        for index, statement in enumerate(block)
        if not hasattr(statement, "body") and test(ast.unparse(statement))
    ]
    assert len(found) == 1, f"expected one such statement, found {len(found)}"
    return found[0]


def exchange_follows_the_finish_sync(tree: ast.Module) -> None:
    """The exchange stands right behind the all-reduce of the busy loop."""
    loop = function(tree, "DPEngineCoreProc.run_busy_loop")
    body, index = block_with(
        loop,
        lambda t: t.startswith("self.engines_running = self._has_global_unfinished"),
    )
    assert "gate.exchange(" in body[index + 1]
    assert "tell_clients=self._send_engine_dead" in body[index + 1]
    assert function(tree, "EngineCoreProc._send_engine_dead")
    everywhere = ast.unparse(tree)
    assert everywhere.count("gate.exchange(") == 1


def scheduler_is_checked_where_it_is_made(tree: ast.Module) -> None:
    """The check follows the construction of the scheduler in EngineCore.__init__."""
    init = function(tree, "EngineCore.__init__")
    body, index = block_with(
        init, lambda t: t.startswith("check_balance_scheduler(self.scheduler")
    )
    made = [
        i for i, t in enumerate(body) if "self.scheduler" in t and "Scheduler(" in t
    ]
    assert made
    assert made[-1] < index
    assert ast.unparse(tree).count("check_balance_scheduler(") == 1


def gate_is_made_after_the_limit(tree: ast.Module) -> None:
    """The gate is made in Scheduler.__init__, behind the limit of running requests."""
    init = function(tree, "Scheduler.__init__")
    body, index = block_with(init, lambda t: t.startswith("self.balance_gate = "))
    limits = [
        i for i, t in enumerate(body) if t.startswith("self.max_num_running_reqs =")
    ]
    assert limits
    assert limits[0] < index


def gate_is_asked_in_both_loops(tree: ast.Module) -> None:
    """schedule() clips running prompts, and holds and clips waiting ones."""
    schedule = function(tree, "Scheduler.schedule")
    whiles = [n for n in ast.walk(schedule) if isinstance(n, ast.While)]
    (running,) = [w for w in whiles if "len(self.running)" in ast.unparse(w.test)]
    waiting = [
        w
        for w in whiles
        if any(
            isinstance(s, ast.Assign) and ast.unparse(s).endswith(".peek_request()")
            for s in w.body
        )
    ]
    assert len(waiting) == 1
    text = ast.unparse(schedule)
    assert text.count("balance_gate.clip(") == 2
    assert text.count("balance_gate.holds(") == 1

    body = [ast.unparse(s) for s in running.body]
    (clip,) = [i for i, t in enumerate(body) if "balance_gate.clip(" in t]
    counted = [i for i, t in enumerate(body) if t.startswith("num_new_tokens = min(")]
    (allocate,) = [i for i, t in enumerate(body) if "allocate_slots(" in t]
    assert counted
    assert counted[0] < clip < allocate

    body = [ast.unparse(s) for s in waiting[0].body]
    (peek,) = [i for i, t in enumerate(body) if t.endswith(".peek_request()")]
    (hold,) = [i for i, t in enumerate(body) if "balance_gate.holds(" in t]
    promote = [
        i
        for i, t in enumerate(body)
        if i > peek
        and ("promote" in t or "WAITING_FOR_REMOTE_KVS" in t or "blocked" in t)
    ]
    allocate = next(i for i, t in enumerate(body) if "allocate_slots(" in t)
    assert promote
    assert peek < promote[0] < hold < allocate
    inner, index = block_with(waiting[0], lambda t: t == "assert num_new_tokens > 0")
    assert "balance_gate.clip(" in inner[index - 1]
    assert inner[index - 2].startswith("num_new_tokens = min(")


def gate_is_told_of_the_end(tree: ast.Module) -> None:
    """Scheduler.shutdown ends the gate's watch, once."""
    shutdown = function(tree, "Scheduler.shutdown")
    told = [i for i, s in enumerate(shutdown.body) if "balance_gate" in ast.unparse(s)]
    assert len(told) == 1
    assert "self.balance_gate.shutdown()" in ast.unparse(shutdown.body[told[0]])
    assert ast.unparse(tree).count("balance_gate.shutdown()") == 1


OPTIONS = ("data_parallel_balance", "data_parallel_balance_ttft")


def option_is_checked_and_passed(tree: ast.Module) -> None:
    """EngineArgs hands the options to ParallelConfig, and the parser has them, once."""
    create = function(tree, "EngineArgs.create_engine_config")
    calls = [
        n
        for n in ast.walk(create)
        if isinstance(n, ast.Call) and ast.unparse(n.func) == "ParallelConfig"
    ]
    assert len(calls) == 1
    given = {k.arg: ast.unparse(k.value) for k in calls[0].keywords}
    for option in OPTIONS:
        assert given.get(option) == f"self.{option}"
    parser = function(tree, "EngineArgs.add_cli_args")
    loops = [
        n
        for n in ast.walk(parser)
        if isinstance(n, ast.For) and ast.unparse(n.iter) == repr(OPTIONS)
    ]
    assert len(loops) == 1
    assert "parallel_group.add_argument(flag" in ast.unparse(loops[0])


def config_has_the_field(tree: ast.Module) -> None:
    """ParallelConfig has the field and checks it at the end of its validation."""
    (config,) = [
        n
        for n in tree.body
        if isinstance(n, ast.ClassDef) and n.name == "ParallelConfig"
    ]
    fields = [
        ast.unparse(n.target) for n in config.body if isinstance(n, ast.AnnAssign)
    ]
    for option in OPTIONS:
        assert fields.count(option) == 1
    post = function(tree, "ParallelConfig.__post_init__")
    body, index = block_with(post, lambda t: t == "check_balance_config(self)")
    assert any(t.startswith("self.data_parallel_index =") for t in body[:index])


def subcommand_is_imported_with_a_sibling(tree: ast.Module) -> None:
    """The module of `vllm bench serve` imports ours beside the base class."""
    body = [ast.unparse(n) for n in tree.body]
    ours = body.index("from vllm.entrypoints.cli.benchmark import dp_balance")
    assert body[ours + 1].startswith("from vllm.entrypoints.cli.benchmark.base import")


CHECKS: dict[str, tuple[Callable[[ast.Module], None], ...]] = {
    "vllm/config/parallel.py": (config_has_the_field,),
    "vllm/entrypoints/cli/benchmark/serve.py": (subcommand_is_imported_with_a_sibling,),
    "vllm/engine/arg_utils.py": (option_is_checked_and_passed,),
    "vllm/v1/core/sched/scheduler.py": (
        gate_is_made_after_the_limit,
        gate_is_asked_in_both_loops,
        gate_is_told_of_the_end,
    ),
    "vllm/v1/engine/core.py": (
        exchange_follows_the_finish_sync,
        scheduler_is_checked_where_it_is_made,
    ),
}


def misplaced(files: dict[str, bytes]) -> list[str]:
    """Return what is wrong with patched files, a line for each failed check."""
    wrong = []
    for path, content in files.items():
        tree = ast.parse(content)
        for check in CHECKS.get(path, ()):
            try:
                check(tree)
            except (AssertionError, ValueError, StopIteration) as error:
                wrong.append(f"{path}: {check.__doc__} {error}")
    return wrong
