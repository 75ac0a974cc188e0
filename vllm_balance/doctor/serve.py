"""What would become of a `vllm serve` command line, and what balance would do."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vllm_balance.doctor.lines import Line
from vllm_balance.doctor.serve_child import RESULT

if TYPE_CHECKING:
    from vllm_balance.doctor.machine import Machine

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

    @property
    def spans_hosts(self) -> bool:
        """Whether some ranks run elsewhere."""
        return self.local_ranks < self.ranks


def arguments_of(command: Sequence[str]) -> list[str] | None:
    """The words from `serve` on, after whatever wraps `vllm`; None without them."""
    for i, word in enumerate(command[:-1]):
        if Path(word).name == "vllm" and command[i + 1] == "serve":
            return list(command[i + 1 :])
    return None


def plan_of(machine: Machine, arguments: Sequence[str]) -> tuple[Plan | None, str]:
    """The plan, or the sentence by which it is refused."""
    module = "vllm_balance.doctor.serve_child"
    output = machine.run(sys.executable, "-m", module, *arguments, seconds=SECONDS)
    for line in reversed(output.text.splitlines()):
        if line.startswith(RESULT):
            found = json.loads(line.removeprefix(RESULT))
            if "refused" in found:
                return None, found["refused"]
            return Plan(**found), ""
    # The parser and the guard of the start end the process with one line.
    said = re.findall(r"(?:^|\s)error: (.+)", output.text)
    last = output.text.strip().rpartition("\n")[2]
    return None, said[-1] if said else f"{output.problem}: {last}"


def balance(machine: Machine, plan: Plan | None, refused: str) -> Iterator[Line]:
    """What balance scheduling would do with the command line."""
    if plan is None:
        do = "change the command line; docs/troubleshooting.md has the sentence"
        yield Line("vllm serve", "bad", refused, "a command line that starts", do)
        return
    last = plan.first_rank + plan.local_ranks - 1
    here = f"ranks {plan.first_rank} to {last} of {plan.ranks} on this host"
    yield Line("vllm serve", "ok", f"{plan.model}, {here}")
    target = f", a target of {plan.ttft:g} s" if plan.ttft is not None else ""
    if plan.policy == "off":
        found = "off: the schedule of stock vLLM"
    else:
        found = f"{plan.policy}{target}: {plan.ranks} ranks agree once per step"
    yield Line("balance", "ok", found)
    wanted = plan.local_ranks * plan.npus_per_rank
    if machine.is_for_npus and not machine.smi.problem:
        seen = len(machine.visible)
        do = "--data-parallel-size-local, --tensor-parallel-size, or more NPUs"
        if seen < wanted:
            expected = f"{wanted}: {plan.npus_per_rank} for each of {plan.local_ranks}"
            yield Line("NPUs of the ranks", "bad", f"{seen} visible", expected, do)
