# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What is decided: arithmetic on numbers, which no release of vLLM can break.

It imports neither vllm nor torch. The scheduler and the simulator call the same code.
"""
