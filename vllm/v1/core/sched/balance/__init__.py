# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Data-parallel balance scheduling.

All data parallel ranks of a MoE model step in lock step, so a step lasts as long
as the slowest rank's. Once per step each rank measures itself and sends its row to all
others; every rank derives the same decision from the same rows, and the scheduler asks
its gate how much prefill it may schedule. To read it, begin at `rank.gate`,
which `rank.start` makes.

Here is what vLLM calls, and what a new release of it can break: `rank` is called by the
scheduler and the engine core, `front` by API servers. The arithmetic, which no release
can break, is `vllm_balance.core`.

This file imports nothing: `vllm.config` imports `options` from here.
"""
