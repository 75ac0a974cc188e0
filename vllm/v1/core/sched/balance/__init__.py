# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Data-parallel balance scheduling.

All data parallel ranks of a MoE model step in lock step, so a step lasts as long
as the slowest rank's. Once per step each rank measures itself (`pending`) and sends
its row to all others (`group`); every rank derives the same decision from the same rows
(`policies`), and the scheduler asks its gate how much prefill it may schedule (`gate`).

This file imports nothing: `vllm.config` imports `options` from here.
"""
