# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What a `vllm serve` command would serve, as vLLM itself reads it."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import UsageError


@dataclass(frozen=True)
class Plan:
    """Without a command nothing is known."""

    url: str = ""
    ranks: int = 0
    slots: int = 0
    """Requests that a rank runs at most."""
    batched_tokens: int = 0
    api_servers: int = 1
    async_scheduling: bool = False
    kv_role: str | None = None
    """As in `--kv-transfer-config`."""
    model: str = ""
    doctor: tuple[tuple[str, str], ...] = ()
    """What was looked at on this host, and the worst state; not what was found, which
    may be a name or an address."""
    devices: tuple[str, ...] = ()
    """Names of the chips."""


def plan_of(command: Sequence[str]) -> Plan:
    """Has the doctor parse it and look at the host.

    Raises:
        UsageError: vLLM, or balance scheduling, refuses it.
    """
    # In the wheel, as this is; a checkout may lack what it needs.
    from vllm_balance.build_info import load_build_info
    from vllm_balance.doctor.command import OF_ALL, OF_NPUS
    from vllm_balance.doctor.lines import lines_of, worst
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
    machine = replace(machine, plan=found)
    checks = OF_ALL | OF_NPUS if machine.is_for_npus else OF_ALL
    settings = found.settings
    host = settings["host"] if settings["host"] not in (None, "", "0.0.0.0") else None
    host = f"[{host}]" if host and ":" in host else host
    scheme = "https" if settings["is_https"] else "http"
    return Plan(
        url=f"{scheme}://{host or '127.0.0.1'}:{found.port}",
        ranks=found.ranks,
        slots=settings["slots"],
        batched_tokens=settings["batched_tokens"],
        api_servers=settings["api_servers"] or found.ranks,
        async_scheduling=settings["async_scheduling"],
        kv_role=settings["kv_role"],
        model=found.model,
        doctor=tuple(
            (what, worst(lines_of(what, check(machine))))
            for what, check in checks.items()
        ),
        devices=tuple(npu.name for npu in machine.smi.npus)
        if machine.is_for_npus
        else (),
    )
