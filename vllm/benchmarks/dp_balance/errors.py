# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the user of `vllm bench dp-balance` can fix."""


class UsageError(ValueError):
    """One sentence: the option or file first, what is wrong, what to do."""
