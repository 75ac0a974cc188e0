"""Where the gate and the exchange must stand, told by hand.

Independent of the tools on purpose: plain `ast`, and facts about vLLM that a reader can
check. Each check's docstring says in a sentence what must be so.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

CORE = "vllm/v1/engine/core.py"
SCHEDULER = "vllm/v1/core/sched/scheduler.py"
SENTINEL = "vllm/v1/fault_tolerance/engine_core_sentinel.py"


def statements(tree: ast.Module, qualified: str) -> list[str]:
    """Return the statements of the one method of this name."""
    return [ast.unparse(statement) for statement in method(tree, qualified).body]


def method(tree: ast.Module, qualified: str) -> ast.FunctionDef:
    """Return the one method of this name."""
    owner, name = qualified.split(".")
    (cls,) = [n for n in tree.body if isinstance(n, ast.ClassDef) and n.name == owner]
    (found,) = [
        n for n in cls.body if isinstance(n, ast.FunctionDef) and n.name == name
    ]
    return found


def at(body: list[str], part: str) -> int:
    """Return the number of the one statement that holds a piece of code."""
    (found,) = [index for index, text in enumerate(body) if part in text]
    return found


def once(tree: ast.Module, text: str) -> None:
    """Assert that this piece of code stands in the module once."""
    found = ast.unparse(tree).count(text)
    assert found == 1, f"expected {text} once, found it {found} times"


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
    once(tree, "gate.exchange_for(")


def backlog_is_told_instead_of_counts(tree: ast.Module) -> None:
    """The gate has the last word on what front-ends are told, and only there.

    From 0.31 on the scheduler asks its own get_request_counts, too.
    """
    body = statements(tree, "DPEngineCoreProc._maybe_publish_request_counts")
    index = body.index("counts = self.scheduler.get_request_counts()")
    assert body[index + 1] == (
        "if (gate := getattr(self.scheduler, 'balance_gate', None)) is not None:\n"
        "    counts = gate.backlog()"
    )
    assert body[index + 2].startswith("if counts != self.last_counts:")
    once(tree, "gate.backlog()")


def gate_is_made_after_the_limit(tree: ast.Module) -> None:
    """The gate is made in Scheduler.__init__, behind the limit of running requests."""
    body = statements(tree, "Scheduler.__init__")
    made = at(body, "self.balance_gate = ")
    assert any(text.startswith("self.max_num_running_reqs =") for text in body[:made])


def gate_is_asked_in_both_loops(tree: ast.Module) -> None:
    """schedule() clips running prompts, and holds and clips waiting ones."""
    schedule = method(tree, "Scheduler.schedule")
    whiles = [n for n in ast.walk(schedule) if isinstance(n, ast.While)]
    bodies = [[ast.unparse(s) for s in loop.body] for loop in whiles]
    text = ast.unparse(schedule)
    assert text.count("balance_gate.clip(") == 2
    assert text.count("balance_gate.holds(") == 1

    (body,) = [
        body
        for loop, body in zip(whiles, bodies, strict=True)
        if "len(self.running)" in ast.unparse(loop.test)
    ]
    counted = next(
        i for i, t in enumerate(body) if t.startswith("num_new_tokens = min")
    )
    assert counted < at(body, "balance_gate.clip(") < at(body, "allocate_slots(")

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


def held_requests_are_put_back_behind_the_loop(tree: ast.Module) -> None:
    """The gate puts back what it took behind the loop that takes waiting requests, and
    before upstream puts back what it skipped."""
    put_back = "if self.balance_gate is not None:\n    self.balance_gate.put_back()"
    blocks = [
        [ast.unparse(statement) for statement in node.body]
        for node in ast.walk(method(tree, "Scheduler.schedule"))
        if isinstance(node, ast.FunctionDef | ast.If)
    ]
    (body,) = [block for block in blocks if put_back in block]
    before = body[: body.index(put_back)]
    assert any(".peek_request()" in text for text in before)
    assert not any(".prepend_requests(" in text for text in before)
    once(tree, "balance_gate.put_back()")


def gate_forgets_the_wave_after_a_fault(tree: ast.Module) -> None:
    """The gate is reset where a fault resets the step counter (from 0.30 on)."""
    body = statements(tree, "EngineCoreSentinel.retry")
    assert "engine.step_counter = 0" in body[at(body, "gate.reset()") - 1]
    once(tree, "gate.reset()")


CHECKS: dict[str, tuple[Callable[[ast.Module], None], ...]] = {
    CORE: (exchange_follows_the_finish_sync, backlog_is_told_instead_of_counts),
    SCHEDULER: (
        gate_is_made_after_the_limit,
        gate_is_asked_in_both_loops,
        held_requests_are_put_back_behind_the_loop,
    ),
    SENTINEL: (gate_forgets_the_wave_after_a_fault,),
}


def misplaced(path: str, content: bytes) -> list[str]:
    """Return what is wrong with a patched file, a line for each failed check."""
    wrong, tree = [], ast.parse(content)
    for check in CHECKS[path]:
        try:
            check(tree)
        except (AssertionError, ValueError, IndexError, StopIteration) as error:
            wrong.append(f"{path}: {check.__doc__} {error}")
    return wrong
