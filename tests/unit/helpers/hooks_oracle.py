"""Where the project's hooks must stand, told by hand.

Independent of the tools on purpose: plain `ast`, and facts about vLLM that a reader can
check. Each check's docstring says in a sentence what must be so.
"""

from __future__ import annotations

import ast
from collections.abc import Callable

from hooks_oracle_report import CHECKS as REPORT_CHECKS
from oracle_syntax import block_with, blocks, function, imported, once

BALANCE = "vllm.v1.core.sched.balance"


def exchange_follows_the_finish_sync(tree: ast.Module) -> None:
    """The exchange stands right behind the all-reduce of the busy loop."""
    loop = function(tree, "DPEngineCoreProc.run_busy_loop")
    body, index = block_with(
        loop,
        lambda t: t.startswith("self.engines_running = self._has_global_unfinished"),
    )
    assert body[index + 1] == (
        "if (gate := getattr(self.scheduler, 'balance_gate', None)) is not None:\n"
        "    gate.exchange_for(self)"
    )
    assert function(tree, "EngineCoreProc._send_engine_dead")
    once(tree, "gate.exchange_for(")


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
    once(tree, "check_balance_scheduler(")


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


def held_requests_are_put_back_behind_the_loop(tree: ast.Module) -> None:
    """The gate puts back what it took behind the loop that takes waiting requests, and
    before upstream puts back what it skipped."""
    put_back = "if self.balance_gate is not None:\n    self.balance_gate.put_back()"
    texts = [
        [ast.unparse(statement) for statement in block]
        for block in blocks(function(tree, "Scheduler.schedule"))
    ]
    (body,) = [block for block in texts if put_back in block]
    index = body.index(put_back)
    assert any(".peek_request()" in t for t in body[:index])
    assert not any(".prepend_requests(" in t for t in body[:index])
    once(tree, "balance_gate.put_back()")


def gate_is_told_of_the_end(tree: ast.Module) -> None:
    """Scheduler.shutdown ends the watch of the gate, once."""
    shutdown = function(tree, "Scheduler.shutdown")
    told = [i for i, s in enumerate(shutdown.body) if "balance_gate" in ast.unparse(s)]
    assert len(told) == 1
    assert ast.unparse(shutdown.body[told[0]]) == (
        "if self.balance_gate is not None:\n    self.balance_gate.shutdown()"
    )
    once(tree, "balance_gate.shutdown()")


def backlog_is_told_instead_of_counts(tree: ast.Module) -> None:
    """The gate has the last word on what front-ends are told, and only there.

    From 0.31 on the scheduler asks its own get_request_counts, too.
    """
    publish = function(tree, "DPEngineCoreProc._maybe_publish_request_counts")
    body = [ast.unparse(statement) for statement in publish.body]
    index = body.index("counts = self.scheduler.get_request_counts()")
    assert body[index + 1] == (
        "if (gate := getattr(self.scheduler, 'balance_gate', None)) is not None:\n"
        "    counts = gate.backlog()"
    )
    assert body[index + 2].startswith("if counts != self.last_counts:")
    once(tree, "gate.backlog()")


SEND = "AsyncMPClient._send_input"
CHOICE = "if (eng_index := request.data_parallel_rank) is None"
DISPATCH = (
    "if (dispatch := getattr(self, 'balance_dispatch', None)) is not None:\n"
    "    dispatch."
)


def front_end_dispatches(tree: ast.Module) -> None:
    """A request is pinned before upstream chooses and counted once serialised; answers
    are seen."""
    client = "DPLBAsyncMPClient."
    choose, see = "get_core_engine_for_request", "process_engine_outputs"
    pin = "pin(request, self.lb_engines, len(self.core_engines))"
    for name, call, following in (
        (client + choose, pin, CHOICE),
        (client + see, "see(outputs)", "if outputs.finished_requests "),
        (SEND, "sent(request)", "return self._send_input_message("),
    ):
        body = [ast.unparse(each) for each in function(tree, name).body]
        at = body.index(DISPATCH + call)
        assert body[at + 1].startswith(following)
        assert name != SEND or ".encoder.encode(request)" in body[at - 1]
        once(tree, f"dispatch.{call}")
    made = [ast.unparse(each) for each in function(tree, client + "__init__").body]
    (at,) = [i for i, text in enumerate(made) if "create_balance_dispatch(" in text]
    assert any(text.startswith("super().__init__(") for text in made[:at])


def rank_says_its_identity(tree: ast.Module) -> None:
    """The ready message has the identity, beside the hash of the configuration."""
    body, index = block_with(
        tree, lambda t: t.startswith("ready_msg['data_parallel_balance'] = ")
    )
    assert body[index].endswith(" = identity_of(vllm_config)")
    assert body[index - 1].startswith("ready_msg['parallel_config_hash'] = ")


def ranks_are_compared_before_the_hash(tree: ast.Module) -> None:
    """The identities are compared before the hashes, whose error names no option."""
    body, index = block_with(
        function(tree, "wait_for_engine_startup"),
        lambda t: t.startswith("check_same_identity(eng_index, msg, parallel_config"),
    )
    assert body[index + 1] == "worker_config_hash = msg.get('parallel_config_hash')"


def signals_are_untied_before_anything_is_forked(tree: ast.Module) -> None:
    """launch_core_engines prepares for forks before it starts the coordinator."""
    launch = function(tree, "launch_core_engines")
    body = [ast.unparse(s) for s in launch.body]
    index = body.index("untie_forked_signals(vllm_config)")
    assert index == (ast.get_docstring(launch) is not None)
    once(tree, "untie_forked_signals(vllm_config)")


def gate_forgets_the_wave_after_a_fault(tree: ast.Module) -> None:
    """The gate is reset where a fault resets the step counter (from 0.30 on)."""
    retry = function(tree, "EngineCoreSentinel.retry")
    body = [ast.unparse(s) for s in retry.body]
    (reset,) = [i for i, t in enumerate(body) if "gate.reset()" in t]
    assert "engine.step_counter = 0" in body[reset - 1]
    once(tree, "gate.reset()")


def engines_are_watched_where_answers_are_awaited(tree: ast.Module) -> None:
    """The watch begins with the task that awaits the answers, in the event loop."""
    body, index = block_with(
        function(tree, "AsyncLLM.__init__"), lambda t: t == "end_with_engines(self)"
    )
    assert body[:index] == ["asyncio.get_running_loop()", "self._run_output_handler()"]
    once(tree, "end_with_engines(")


def coordinator_ends_with_its_parent(tree: ast.Module) -> None:
    """The context is replaced right after it is made, before it starts the process."""
    body, index = block_with(
        function(tree, "DPCoordinator.__init__"),
        lambda t: t.startswith("context = context_with_parent_watch("),
    )
    assert body[index - 1] == "context = get_mp_context()"
    (start,) = [i for i, t in enumerate(body) if "= context.Process(" in t]
    assert index < start
    once(tree, "context_with_parent_watch(")


Check = Callable[[ast.Module], None]

CHECKS: dict[str, tuple[Check, ...]] = {
    **REPORT_CHECKS,
    "vllm/v1/core/sched/scheduler.py": (
        imported(f"{BALANCE}.gate", "create_balance_gate"),
        gate_is_made_after_the_limit,
        gate_is_asked_in_both_loops,
        held_requests_are_put_back_behind_the_loop,
        gate_is_told_of_the_end,
        *REPORT_CHECKS["vllm/v1/core/sched/scheduler.py"],
    ),
    "vllm/v1/engine/core.py": (
        imported(f"{BALANCE}.validation", "check_balance_scheduler"),
        exchange_follows_the_finish_sync,
        backlog_is_told_instead_of_counts,
        scheduler_is_checked_where_it_is_made,
        imported(f"{BALANCE}.identity", "identity_of"),
        rank_says_its_identity,
    ),
    "vllm/v1/engine/core_client.py": (
        imported(f"{BALANCE}.front_end", "create_balance_dispatch"),
        front_end_dispatches,
    ),
    "vllm/v1/engine/async_llm.py": (
        imported(f"{BALANCE}.server_end", "end_with_engines"),
        engines_are_watched_where_answers_are_awaited,
    ),
    "vllm/v1/engine/coordinator.py": (
        imported(f"{BALANCE}.parent_watch", "context_with_parent_watch"),
        coordinator_ends_with_its_parent,
    ),
    "vllm/v1/engine/utils.py": (
        imported(f"{BALANCE}.identity", "check_same_identity"),
        imported(f"{BALANCE}.forked_signals", "untie_forked_signals"),
        ranks_are_compared_before_the_hash,
        signals_are_untied_before_anything_is_forked,
    ),
}
# What further supported releases have in addition, by name.
SENTINEL: dict[str, tuple[Check, ...]] = {
    "vllm/v1/fault_tolerance/engine_core_sentinel.py": (
        gate_forgets_the_wave_after_a_fault,
    ),
}
SUPPORTED = {"0.30": SENTINEL, "0.33": SENTINEL}


def misplaced(files: dict[str, bytes], release: str = "") -> list[str]:
    """Return what is wrong with patched files, a line for each failed check.

    Args:
        files: Content by path.
        release: Name of a further supported release, whose own hooks are checked too.
    """
    wrong = []
    for path, content in files.items():
        tree = ast.parse(content)
        more = SUPPORTED[release].get(path, ()) if release else ()
        for check in (*CHECKS.get(path, ()), *more):
            try:
                check(tree)
            except (AssertionError, ValueError, IndexError, StopIteration) as error:
                wrong.append(f"{path}: {check.__doc__} {error}")
    return wrong
