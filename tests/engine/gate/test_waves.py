"""Waves without end in real engine loops: nothing hangs, is lost or is held over.

The long run, about one wave a second::

    ENV/bin/pytest tests/engine/gate/test_waves.py -m "" --waves 5000 --timeout 0 -rP
"""

import random
import time

import pytest

from dp_loop import LoopEngine
from dp_ranks import HOW, Ranks, burst, loop_arguments

PREFILL_S_PER_TOKEN = 6e-4
"""So that there is something to balance: the adaptive policy learns what it costs."""


class CheckedEngine(LoopEngine):
    """Checks what was scheduled against the gate's decision, in short waves."""

    def _record(self, output):
        super()._record(output)
        decision = self.scheduler.balance_gate.decision
        new = {request.req_id for request in output.scheduled_new_reqs}
        prompts = {
            req_id: tokens
            for req_id, tokens in output.num_scheduled_tokens.items()
            if self._is_gated_prompt(self.scheduler.requests[req_id], tokens)
        }
        self.trace.closed += not decision.admit or decision.prefill_budget is not None
        if not decision.admit and new:
            self._complain(f"{sorted(new)} admitted while closed")
        budget = decision.prefill_budget
        alone = prompts.keys() == output.num_scheduled_tokens.keys()
        if budget is not None and sum(prompts.values()) > max(budget, alone):
            self._complain(f"{prompts} scheduled with a budget of {budget}")
        time.sleep(PREFILL_S_PER_TOKEN * sum(prompts.values()))
        if self.step_counter == 0 and (not decision.admit or budget is not None):
            self._complain(f"{decision} at the start of a wave")

    @staticmethod
    def _is_gated_prompt(request, tokens):
        before = request.num_computed_tokens - tokens
        return before < request.num_prompt_tokens

    def _complain(self, what):
        where = f"rank {self.dp_rank} wave {self.current_wave} step {self.step_counter}"
        self.trace.violations.append(f"{where}: {what}")


PAUSES = ("keep", "keep", "wait", "abort")


def stress(ranks, rng, waves):
    """Bursts, aborts, pauses in the middle of a wave, and ranks without requests."""
    for wave in range(waves):
        aborts = rng.random() < 0.3
        burst(ranks, rng, f"w{wave}", rng.randint(1, 30), aborts)
        if rng.random() < 0.5:
            mode = rng.choice(PAUSES)
            ranks.call("pause_scheduler", mode, False)
            burst(ranks, rng, f"p{wave}", rng.randint(0, 5))
            ranks.call("resume_scheduler")
        ranks.poll()
        burst(ranks, rng, f"x{wave}", rng.randint(0, 10))
        if rng.random() < 0.7:
            ranks.drain()
    ranks.drain()


@pytest.mark.parametrize(
    ("policy", "how"),
    [
        pytest.param("cap", "sync", marks=pytest.mark.slow),
        pytest.param("align", "async", marks=pytest.mark.slow),
        ("adaptive", "several hosts"),
    ],
)
def test_waves(moe_model, policy, how, pytestconfig):
    waves = pytestconfig.getoption("--waves") // 6
    arguments = loop_arguments(
        moe_model,
        **HOW[how],
        enable_prefix_caching=True,
        # Blocks for one long request: others are preempted.
        additional_config={"kv_blocks": 18, "shared_prefix": 48},
        cpu_distributed_timeout_seconds=30,
        data_parallel_balance=policy,
    )
    with Ranks(3, CheckedEngine, **arguments) as ranks:
        stress(ranks, random.Random(f"{policy}{waves}"), waves)
        reports = ranks.stop()
    check(reports, waves)


def check(reports, waves):
    """That the waves came to their end, and that there was something to see."""
    traces = [trace for trace, _ in reports]
    assert [leftover for _, leftover in reports] == [0, 0, 0]
    assert [trace.violations for trace in traces] == [[], [], []]
    assert traces[0].waves >= waves / 2
    assert sum(trace.closed for trace in traces) > 0, "nothing was gated"
    assert sum(trace.preemptions for trace in traces) > 0
    print(
        f"{traces[0].waves} waves, {sum(t.finished for t in traces)} requests, "
        f"{len(traces[0].steps)} steps with work on rank 0, "
        f"{sum(t.preemptions for t in traces)} preemptions"
    )
