"""Where the gate and the exchange must stand, told by hand, without our tools."""

import ast
from collections.abc import Callable

CORE = "vllm/v1/engine/core.py"
SCHEDULER = "vllm/v1/core/sched/scheduler.py"
SENTINEL = "vllm/v1/fault_tolerance/engine_core_sentinel.py"


def method(tree: ast.Module, qualified: str) -> ast.FunctionDef:
    owner, name = qualified.split(".")
    (cls,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner]
    (found,) = [
        n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == name
    ]
    return found


def at(body: list[str], part: str) -> int:
    (found,) = [index for index, text in enumerate(body) if part in text]
    return found


def exchange_follows_the_finish_sync(tree: ast.Module) -> None:
    """The exchange stands right behind the all-reduce of the busy loop."""
    loop = method(tree, "DPEngineCoreProc.run_busy_loop")
    (body,) = [
        [ast.unparse(statement) for statement in node.body]
        for node in ast.walk(loop)
        if isinstance(node, ast.While)
    ]
    behind = at(body, "self.engines_running = self._has_global_unfinished") + 1
    assert body[behind] == (
        "if (gate := getattr(self.scheduler, 'balance_gate', None)) is not None:\n"
        "    gate.exchange_for(self)"
    )
    assert ast.unparse(tree).count("gate.exchange_for(") == 1


def gate_is_asked_in_both_loops(tree: ast.Module) -> None:
    """schedule() clips running prompts, and holds and clips waiting ones."""
    schedule = method(tree, "Scheduler.schedule")
    whiles = [n for n in ast.walk(schedule) if isinstance(n, ast.While)]
    bodies = [[ast.unparse(s) for s in loop.body] for loop in whiles]
    text = ast.unparse(schedule)
    assert text.count("balance_gate.clip_running(") == 1
    assert text.count("balance_gate.clip(") == 1
    assert text.count("balance_gate.holds(") == 1

    (body,) = [
        body
        for loop, body in zip(whiles, bodies, strict=True)
        if "len(self.running)" in ast.unparse(loop.test)
    ]
    counted = next(
        i for i, t in enumerate(body) if t.startswith("num_new_tokens = min")
    )
    assert (
        counted < at(body, "balance_gate.clip_running(") < at(body, "allocate_slots(")
    )

    (body,) = [b for b in bodies if any(t.endswith(".peek_request()") for t in b)]
    peek, hold = at(body, ".peek_request()"), at(body, "balance_gate.holds(")
    promoted = [
        i
        for i, t in enumerate(body)
        if i > peek
        and ("promote" in t or "WAITING_FOR_REMOTE_KVS" in t or "blocked" in t)
    ]
    allocate = next(i for i, t in enumerate(body) if "allocate_slots(" in t)
    assert peek < promoted[0] < hold < allocate
    (inner,) = [
        [ast.unparse(s) for s in block]
        for node in ast.walk(schedule)
        for block in (getattr(node, "body", []), getattr(node, "orelse", []))
        if isinstance(block, list)
        and "assert num_new_tokens > 0" in [ast.unparse(s) for s in block]
    ]
    index = inner.index("assert num_new_tokens > 0")
    assert "balance_gate.clip(" in inner[index - 1]
    assert inner[index - 2].startswith("num_new_tokens = min(")


def gate_forgets_the_wave_after_a_fault(tree: ast.Module) -> None:
    """The gate is reset where a fault resets the step counter (from 0.30 on)."""
    retry = method(tree, "EngineCoreSentinel.retry")
    body = [ast.unparse(statement) for statement in retry.body]
    assert "engine.step_counter = 0" in body[at(body, "gate.reset()") - 1]
    assert ast.unparse(tree).count("gate.reset()") == 1


CHECKS: dict[str, Callable[[ast.Module], None]] = {
    CORE: exchange_follows_the_finish_sync,
    SCHEDULER: gate_is_asked_in_both_loops,
    SENTINEL: gate_forgets_the_wave_after_a_fault,
}


def misplaced(path: str, content: bytes) -> str:
    """Return what is wrong with a patched file, "" if nothing is."""
    check = CHECKS[path]
    try:
        check(ast.parse(content))
    except (AssertionError, ValueError, IndexError, StopIteration) as error:
        return f"{path}: {check.__doc__} {error}"
    return ""
