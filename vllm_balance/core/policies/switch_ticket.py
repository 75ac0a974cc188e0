# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Which policy a group is to have, as ranks tell each other in their rows.

Each request to switch gets a ticket, a number that is larger the later it came: how
many came before, and the policy. The largest of all rows counts, so all ranks switch in
the same step.
"""

NAMES = ("off", "cap", "align", "adaptive")
"""The policies that can be asked for: the values of `--data-parallel-balance`."""


def first_ticket(name: str) -> int:
    return NAMES.index(name)


def next_ticket(ticket: int, name: str) -> int:
    """A ticket for this policy, newer than that one.

    Raises:
        ValueError: there is no such policy.
    """
    return (ticket // len(NAMES) + 1) * len(NAMES) + NAMES.index(name)


def policy_of(ticket: int) -> str:
    return NAMES[ticket % len(NAMES)]
