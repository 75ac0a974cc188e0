"""What is installed: the wheel, what its metadata requires, what lies over or under."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from vllm_balance.doctor.lines import Line
from vllm_balance.doctor.machine import Machine
from vllm_balance.installed import find_installed, normalise
from vllm_balance.start import hooks_that_are_gone
from vllm_balance.triton import triton_problem
from vllm_balance.verify import NAMES, repair_mixed, strangers

ON_THE_VENDORS_INDEX = ("torch-npu", "triton-ascend")


def wheel(machine: Machine) -> Iterator[Line]:
    """What the server asks before it starts, and says then in the same words."""
    info = machine.info
    if info is None:
        there = "a checkout or an editable install, without a record of its build"
        yield Line("wheel", "unknown", there, "a wheel", "make wheel; pip install it")
        return
    found = find_installed(*NAMES)
    wrong = [*strangers(info, found), *hooks_that_are_gone(info)]
    for sentence in wrong:
        where, _, rest = sentence.partition(": expected ")
        expected, _, there = rest.partition(", found ")
        there = f"{there} in {where}"
        yield Line("wheel", "bad", there, expected, repair_mixed(info, found))
    if problem := triton_problem():
        there, _, repair = problem.partition(". Repair: ")
        yield Line("triton-ascend", "bad", there, "Triton that works on NPUs", repair)
    if not wrong:
        python = f"Python {platform.python_version()} on {platform.machine()}"
        yield Line("wheel", "ok", f"{info.wheel}, {python}")


def requirements(machine: Machine) -> Iterator[Line]:
    """Every requirement of the wheel's metadata, against what would be imported."""
    try:
        parse = _requirement_class()
    except ImportError:
        yield Line(
            "requirements", "unknown", "no package `packaging`", do="pip install pip"
        )
        return
    (vllm, *_) = [*find_installed("vllm"), None]
    if vllm is None:
        yield Line("requirements", "unknown", "no installed vllm", do="install it")
        return
    wanted = [parse(line) for line in vllm.distribution.requires or ()]
    wanted = [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    lines = [line for r in wanted for line in _requirement(r)]
    yield from lines
    if not lines:
        yield Line("requirements", "ok", f"all {len(wanted)} of {vllm.version}")


def _requirement_class() -> Any:
    try:
        return import_module("packaging.requirements").Requirement
    except ImportError:
        return import_module("pip._vendor.packaging.requirements").Requirement


def _requirement(wanted: Any) -> Iterator[Line]:
    name = normalise(wanted.name)
    found = find_installed(name)
    do = f"pip install --no-deps '{wanted.name}{wanted.specifier}'"
    if name in ON_THE_VENDORS_INDEX:
        do += " --extra-index-url <the vendor's index>"
    expected = str(wanted.specifier) or "any version"
    if not found:
        yield Line(name, "bad", "none is installed", expected, do)
        return
    version = found[0].version
    if not wanted.specifier.contains(version, prereleases=True):
        yield Line(name, "bad", version, expected, do)
    if len(found) > 1:
        others = ", ".join(f"{d.version} in {d.folder}" for d in found[1:])
        both = f"{version} in {found[0].folder}, over {others}"
        do = f"pip uninstall --yes {wanted.name}, once for each; then {do}"
        yield Line(name, "warn", both, "one installation", do)
