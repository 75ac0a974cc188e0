"""Environment variables that are known to hurt, or that nobody reads any more."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from vllm_balance.doctor.lines import Line, State
from vllm_balance.doctor.machine import Machine
from vllm_balance.doctor.serve import Plan

ISSUES = "vllm-ascend issue"


@dataclass(frozen=True)
class Known:
    """A value that somebody has stumbled over."""

    name: str
    hurts: Callable[[str, Plan | None], bool]
    state: State
    expected: str
    do: str


def _has_several_groups(value: str, plan: Plan | None) -> bool:
    return value.upper() == "AIV" and (plan is None or plan.ranks > 1)


KNOWN = (
    Known(
        "HCCL_OP_EXPANSION_MODE",
        _has_several_groups,
        "warn",
        "not AIV: two groups whose operators run at once lock each other out "
        f"({ISSUES}s 14296, 14928, 15035)",
        "unset HCCL_OP_EXPANSION_MODE, if a start or a step hangs",
    ),
    Known(
        "ASCEND_LAUNCH_BLOCKING",
        lambda value, _: value not in ("", "0"),
        "warn",
        "0: each operator waits for the one before, and graphs cannot be captured",
        "unset ASCEND_LAUNCH_BLOCKING",
    ),
    Known(
        "VLLM_PORT",
        lambda value, _: "://" in value,
        "bad",
        "a number; Kubernetes sets it for a Service that is called vllm",
        "enableServiceLinks: false, or another name for the Service",
    ),
    Known(
        "VLLM_PLUGINS",
        lambda value, _: "vllm_balance" not in value.split(","),
        "warn",
        "vllm_balance among them, which looks for a vLLM that is mixed in",
        "add vllm_balance to VLLM_PLUGINS",
    ),
    Known(
        "VLLM_ASCEND_BALANCE_SCHEDULING",
        lambda value, _: value not in ("", "0"),
        "warn",
        "not set: it is deprecated, and means --data-parallel-balance cap",
        "unset it, and pass --data-parallel-balance cap",
    ),
    Known(
        "VLLM_USE_RUST_FRONTEND",
        lambda value, plan: (
            value not in ("", "0") and plan is not None and plan.policy != "off"
        ),
        "bad",
        "not set with balance scheduling",
        "unset VLLM_USE_RUST_FRONTEND",
    ),
    Known(
        "VLLM_ENABLE_V1_MULTIPROCESSING",
        lambda value, _: value == "0",
        "bad",
        "1: the ranks agree in the loop of processes of their own",
        "unset VLLM_ENABLE_V1_MULTIPROCESSING",
    ),
    Known(
        "HCCL_CONNECT_TIMEOUT",
        lambda value, _: value.isdigit() and int(value) < 120,
        "warn",
        "120 (seconds, the default) or more: ranks load at different speeds",
        "export HCCL_CONNECT_TIMEOUT=1800",
    ),
)


def variables(machine: Machine, plan: Plan | None) -> Iterator[Line]:
    """What is set and known to hurt, and names of the plugin that it does not read."""
    lines = [*_known(machine, plan), *_gone(machine), *_options(machine, plan)]
    yield from lines
    if not lines:
        yield Line("variables", "ok", "none that is known to hurt")


def _known(machine: Machine, plan: Plan | None) -> Iterator[Line]:
    for known in KNOWN:
        value = machine.environ.get(known.name)
        if value is not None and known.hurts(value, plan):
            yield Line(known.name, known.state, value, known.expected, known.do)


def _gone(machine: Machine) -> Iterator[Line]:
    """A name with the prefix of the plugin does nothing if its own list lacks it."""
    spec = find_spec("vllm_ascend")
    if spec is None or spec.origin is None:
        return
    listed = Path(spec.origin).with_name("envs.py")
    if not listed.is_file():
        return
    names = set(re.findall(r'"(VLLM_ASCEND_\w+)"', listed.read_text(encoding="utf-8")))
    ours = {known.name for known in KNOWN}
    for name in sorted(machine.environ):
        if name.startswith("VLLM_ASCEND_") and name not in names | ours:
            expected = f"one that {listed} reads"
            do = f"unset {name}; upstream's docs of --additional-config may name it now"
            yield Line(name, "warn", "is read by nothing", expected, do)


def _options(machine: Machine, plan: Plan | None) -> Iterator[Line]:
    """Three options that start alone and hang together."""
    options = plan.options if plan else {}
    flash = machine.environ.get("VLLM_ASCEND_ENABLE_FLASHCOMM1", "0") not in ("", "0")
    flash = flash or bool(options.get("enable_flashcomm1"))
    if plan and plan.ranks > 1 and flash and options.get(_OVERLAP):
        expected = f"one of flashcomm1 and {_OVERLAP} ({ISSUES} 16446)"
        do = f"set {_OVERLAP} to false in --additional-config"
        yield Line(
            "--additional-config", "warn", "both with several ranks", expected, do
        )


_OVERLAP = "multistream_overlap_shared_expert"
