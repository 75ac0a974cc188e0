"""The rules and routers of others, to compare ours with. No wheel has them."""

from vllm_balance.core.policies import Decision

HOLD = Decision(admit=False, prefill_budget=0, reason="hold")
