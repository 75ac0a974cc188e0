# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Which policy a group is to have, as ranks tell each other in their rows.

A wish is a number, which is larger the later it was made: how many were made before,
and the policy. The largest of all rows counts, so all ranks switch in the same step.
"""

NAMES = ("off", "cap", "align", "adaptive")
"""The policies that can be wished for: the values of `--data-parallel-balance`."""


def first_wish(name: str) -> int:
    return NAMES.index(name)


def next_wish(wish: int, name: str) -> int:
    """A wish for this policy, newer than that one.

    Raises:
        ValueError: there is no such policy.
    """
    return (wish // len(NAMES) + 1) * len(NAMES) + NAMES.index(name)


def wished(wish: int) -> str:
    return NAMES[wish % len(NAMES)]
