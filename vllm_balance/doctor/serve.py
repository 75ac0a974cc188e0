"""What would become of a `vllm serve` command line, and what balance would do."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_balance.doctor.lines import Line
from vllm_balance.doctor.serve_child import RESULT

if TYPE_CHECKING:
    from vllm_balance.doctor.machine import Machine

CHILD = (
    "import sys; sys.path = [folder for folder in sys.path if folder];"
    "from vllm_balance.doctor.serve_child import main; main(sys.argv[1:])"
)
"""Not from the folder in which it runs, which may be a checkout of vLLM."""
SECONDS = 300.0
"""vLLM and torch_npu are imported; on a busy machine that takes a minute."""


@dataclass(frozen=True)
class Plan:
    """What the engine would be configured as."""

    policy: str
    ttft: float | None
    ranks: int
    local_ranks: int
    first_rank: int
    npus_per_rank: int
    headless: bool
    port: int
    rpc_port: int
    address: str
    model: str
    options: Mapping[str, Any]
    """`--additional-config`."""


def plan_of(machine: Machine, command: Sequence[str]) -> tuple[Plan | None, list[Line]]:
    """Parse a command line, in a process of its own.

    Args:
        machine: where it would run.
        command: its words, with whatever wraps `vllm`; none to look at no command.

    Returns:
        The plan, None if it is refused; and what there is to say on it.

    Raises:
        ValueError: it is no `vllm serve`.
    """
    if not command:
        return None, []
    starts = [i for i, word in enumerate(command) if Path(word).name == "vllm"]
    if not starts or command[starts[0] + 1 : starts[0] + 2] != ["serve"]:
        found = " ".join(command)
        raise ValueError(f"expected `vllm serve …` after --, found {found!r}")
    arguments = command[starts[0] + 1 :]
    child = (sys.executable, "-c", CHILD, *arguments)
    text, status = machine.run(*child, seconds=SECONDS)
    results = re.findall(rf"^{RESULT}(.*)$", text, re.M)
    found = json.loads(results[-1]) if results else {}
    if "policy" in found:
        plan = Plan(**found)
        return plan, _lines(machine, plan)
    # The parser, and the guard of the start, end the process with one line.
    said = re.findall(r"(?:^|\s)error: (.+)", text) or [f"{status}: {text[-200:]}"]
    do = "change the command line; docs/troubleshooting.md has the sentence"
    refused = found.get("refused", said[-1])
    expected = "a command line that starts"
    return None, [Line("vllm serve", "bad", refused, expected, do)]


def _lines(machine: Machine, plan: Plan) -> list[Line]:
    last = plan.first_rank + plan.local_ranks - 1
    here = f"ranks {plan.first_rank} to {last} of {plan.ranks} on this host"
    target = f" with a target of {plan.ttft:g} s" if plan.ttft is not None else ""
    does = f"{plan.policy}{target}: {plan.ranks} ranks agree once per step"
    does = "off: the schedule of stock vLLM" if plan.policy == "off" else does
    lines = [Line("vllm serve", "ok", f"{plan.model}, {here}")]
    lines.append(Line("balance", "ok", does))
    wanted, seen = plan.local_ranks * plan.npus_per_rank, len(machine.visible)
    if machine.is_for_npus and not machine.smi.problem and seen < wanted:
        expected = f"{wanted}: {plan.npus_per_rank} for each of {plan.local_ranks}"
        do = "--data-parallel-size-local, --tensor-parallel-size, or more NPUs"
        lines.append(Line("NPUs of the ranks", "bad", f"{seen} visible", expected, do))
    return lines
