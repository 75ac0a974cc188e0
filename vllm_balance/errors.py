# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Errors that the user of `vllm-balance` can fix."""


class UsageError(Exception):
    """One sentence: the option or file first, what is wrong, what to do.

    No `ValueError`: a parser that catches those would swallow it.
    """
