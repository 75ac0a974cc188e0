"""Environment variables that are known to hurt, or that nobody reads any more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from vllm_balance.doctor.lines import Line, State
from vllm_balance.doctor.machine import Machine

SET = r"(?!0?$)"
OVERLAP = "multistream_overlap_shared_expert"

AIV = "HCCL_OP_EXPANSION_MODE"
# Name, values that hurt, how much, what is expected, the repair. Numbers are issues of
# vllm-ascend.
KNOWN: tuple[tuple[str, str, State, str, str], ...] = (
    (AIV, "(?i)AIV$", "warn", "not AIV with several ranks: two groups at once "
     "lock each other out (14296, 14928, 15035)", "unset it, if a start or step hangs"),
    ("ASCEND_LAUNCH_BLOCKING", SET, "warn", "0: else each operator waits", "unset it"),
    ("VLLM_PORT", ".*://", "bad", "a number, not what Kubernetes sets for a Service",
     "enableServiceLinks: false, or another name than vllm for the Service"),
    ("VLLM_PLUGINS", "(?!.*vllm_balance)", "warn", "vllm_balance in it: it looks for "
     "another vLLM that is mixed in", "add vllm_balance"),
    ("VLLM_ASCEND_BALANCE_SCHEDULING", SET, "warn", "not set: it is deprecated",
     "unset it, and pass --data-parallel-balance cap, which it means"),
    ("VLLM_ENABLE_V1_MULTIPROCESSING", "0$", "bad", "1: ranks agree in processes of "
     "their own", "unset it"),
    ("HCCL_CONNECT_TIMEOUT", r"\d{1,2}$|1[01]\d$", "warn", "120 s, the default,"
     " or more", "export HCCL_CONNECT_TIMEOUT=1800"),
)  # fmt: skip


def variables(machine: Machine) -> Iterator[Line]:
    """What is set and known to hurt, and names of the plugin that it does not read."""
    lines = [*_known(machine), *_gone(machine), *_options(machine)]
    yield from lines or [Line("variables", "ok", "none that is known to hurt")]


def _known(machine: Machine) -> Iterator[Line]:
    for name, values, state, expected, do in KNOWN:
        value = machine.environ.get(name)
        alone = name == AIV and machine.plan and machine.plan.ranks == 1
        if value is not None and re.match(values, value) and not alone:
            yield Line(name, state, value, expected, do)


def _gone(machine: Machine) -> Iterator[Line]:
    """A name with the prefix of the plugin does nothing if its own list lacks it."""
    spec = find_spec("vllm_ascend")
    listed = Path(spec.origin).with_name("envs.py") if spec and spec.origin else None
    if listed is None or not listed.is_file():
        return
    names = set(re.findall(r'"(VLLM_ASCEND_\w+)"', listed.read_text(encoding="utf-8")))
    names |= {known[0] for known in KNOWN}
    for name in sorted(machine.environ):
        if name.startswith("VLLM_ASCEND_") and name not in names:
            do = "unset it; it may be a key of --additional-config now"
            yield Line(name, "warn", "read by nothing", f"a name of {listed}", do)


def _options(machine: Machine) -> Iterator[Line]:
    """Three options that start alone and hang together."""
    plan = machine.plan
    value = machine.environ.get("VLLM_ASCEND_ENABLE_FLASHCOMM1", "0")
    if plan is None or plan.ranks == 1 or not plan.options.get(OVERLAP):
        return
    if re.match(SET, value) or plan.options.get("enable_flashcomm1"):
        expected = f"flashcomm1 or {OVERLAP}, not both (16446)"
        do = f"set {OVERLAP} to false in --additional-config"
        yield Line(
            "--additional-config", "warn", "both, with several ranks", expected, do
        )
