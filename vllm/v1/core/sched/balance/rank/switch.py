# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Which policy a rank has, and which one is asked for."""

from collections.abc import Callable

from vllm.logger import init_logger

from vllm_balance.core.policies import Policy
from vllm_balance.core.policies.switch_ticket import first_ticket, policy_of

logger = init_logger(__name__)


class PolicySwitch:
    """The policy of one rank, which all ranks change in the same step."""

    def __init__(self, name: str, new_policy: Callable[[str], Policy]) -> None:
        """Starts with a policy, or "off", and makes others by their names."""
        self._new_policy = new_policy
        self._policies: dict[str, Policy] = {}
        """Those that this group has had. What they learned of the device stays."""
        self.ticket = first_ticket(name)
        self.use_policy(name)

    def use_policy(self, name: str) -> None:
        """Goes on with another policy, as after the end of a wave."""
        self.name = name
        self.policy: Policy | None = None
        if name != "off":
            if name not in self._policies:
                self._policies[name] = self._new_policy(name)
            self.policy = self._policies[name]
            self.policy.reset()

    @property
    def is_followed(self) -> bool:
        """Whether the policy is the one that was asked for last."""
        return policy_of(self.ticket) == self.name

    def request(self, ticket: int) -> dict[str, object]:
        """Notes a ticket, which the ranks follow from their next exchange on.

        Returns:
            the policy now, the wanted one, and the newest ticket.
        """
        self.ticket = max(self.ticket, ticket)
        return {
            "policy": self.name,
            "wanted": policy_of(self.ticket),
            "ticket": self.ticket,
        }

    def follow(self, ticket: int, wave: int, step: int) -> bool:
        """Takes the newest ticket of all rows, as all ranks do in this step.

        Returns:
            Whether that changes the policy.
        """
        self.request(ticket)  # a newer one may have come since the row was sent
        before, name = self.name, policy_of(ticket)
        if name == before:
            return False
        self.use_policy(name)
        logger.info(
            "Data parallel balance: policy %s instead of %s, from step %d of wave %d "
            "on.",
            name,
            before,
            step + 1,
            wave,
        )
        return True

    def forget(self) -> None:
        """Begins anew with the same policy, in a group of other ranks.

        New ranks (elastic expert parallelism) have learned nothing, and ranks that have
        learned something would decide differently.
        """
        self._policies.clear()
        self.use_policy(self.name)
