# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Data-parallel balance scheduling.

All data parallel ranks of a MoE model step in lock step, so a step lasts as long
as the slowest rank's. Once per step the ranks exchange one small row each
(`exchange`), every rank derives the same decision from the same rows (`policy`),
and the scheduler asks its gate how much prefill it may schedule (`gate`).

This file imports nothing: `vllm.config` imports `validation` from here.
"""
