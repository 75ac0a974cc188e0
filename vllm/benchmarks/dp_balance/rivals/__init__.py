# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The rules of other engines, to compare ours with. They never run in a server."""

from vllm.v1.core.sched.balance.core.policies import Decision

HOLD = Decision(admit=False, prefill_budget=0, reason="hold")
