# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Data parallel balance scheduling in virtual time: which policy helps, and how much.

The ranks of a MoE model step in lock step. Here a cost model says how long a step
takes; the policies, the rows they read and, with the real engine, the schedulers and
their gates are the ones that serve.
"""

import logging
import os
import sys

# Else nine lines on platforms come before any help.
if sys.argv[1:3] == ["bench", "dp-balance"] and "VLLM_LOGGING_LEVEL" not in os.environ:
    logging.getLogger("vllm").setLevel(logging.WARNING)
