# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a `vllm serve` command would serve, as vLLM itself reads it."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError


class Plan(NamedTuple):
    """Of a command that is not refused."""

    url: str
    """Where it would answer."""
    model: str


def plan_of(command: Sequence[str]) -> Plan:
    """Has the doctor parse it: what is wrong is said before the first turn.

    Raises:
        UsageError: vLLM, or balance scheduling, refuses it.
    """
    # In the wheel, as this is; a checkout may lack what it needs.
    from vllm_balance.build_info import load_build_info
    from vllm_balance.doctor.machine import Machine
    from vllm_balance.doctor.plan import Plan as Parsed
    from vllm_balance.doctor.serve import plan_of as parsed_of

    machine = Machine(Path("/"), dict(os.environ), load_build_info(), Parsed())
    try:
        found, lines = parsed_of(machine, command)
    except ValueError as error:
        raise UsageError(f"{error}.") from None
    refused = next((line for line in lines if line.state == "bad"), None)
    if refused is not None:
        raise UsageError(f"vllm serve: {refused.found}; {refused.do}.")
    if found.headless:
        raise UsageError(
            "--headless: such a server has no address to send requests to."
        )
    host = found.host if found.host not in ("", "0.0.0.0") else "127.0.0.1"
    host = f"[{host}]" if ":" in host else host
    scheme = "https" if found.is_https else "http"
    return Plan(f"{scheme}://{host}:{found.port}", found.model)
