# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Data-parallel balance scheduling.

All data parallel ranks of a MoE model step in lock step, so a step lasts as long
as the slowest rank's. Once per step each rank measures itself and sends its row to all
others; every rank derives the same decision from the same rows, and the scheduler asks
its gate how much prefill it may schedule. To read it, begin at `rank.gate`.

Sorted by what a new release of vLLM can break: `core` is arithmetic, which none can;
`rank` is what the scheduler and the engine core call; `front` what API servers call.

This file imports nothing: `vllm.config` imports `options` from here.
"""
