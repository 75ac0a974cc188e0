"""The rules and routers of others, to compare ours with. No wheel has them."""

from vllm.v1.core.sched.balance.core.policies import Decision

HOLD = Decision(admit=False, prefill_budget=0, reason="hold")
