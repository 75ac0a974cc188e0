# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Modelled ranks: a scheduler, its queues and its KV cache, as vLLM's."""
