"""What is installed: the wheel, what its metadata requires, what lies over or under."""

from __future__ import annotations

import platform

from vllm_balance.doctor.lines import Line, Said
from vllm_balance.doctor.machine import Machine
from vllm_balance.installed import find_installed, normalise
from vllm_balance.start import hooks_that_are_gone
from vllm_balance.triton import triton_problem
from vllm_balance.verify import NAMES, repair_mixed, strangers

ON_THE_VENDORS_INDEX = ("torch-npu", "triton-ascend")


def wheel(machine: Machine) -> Said:
    """What the server asks before it starts, and says then in the same words."""
    info = machine.info
    if info is None:
        there = "a checkout or an editable install, without a record of its build"
        yield Line("wheel", "unknown", there, "a wheel", "make wheel; pip install it")
        return
    found = find_installed(*NAMES)
    for sentence in (*strangers(info, found), *hooks_that_are_gone(info)):
        where, _, rest = sentence.partition(": expected ")
        expected, _, there = rest.partition(", found ")
        do = repair_mixed(info, found)
        yield Line("wheel", "bad", f"{there} in {where}", expected, do)
    if problem := triton_problem():
        there, _, repair = problem.partition(". Repair: ")
        yield Line("triton-ascend", "bad", there, "Triton that works on NPUs", repair)
    yield f"{info.wheel}, Python {platform.python_version()} on {platform.machine()}"


def requirements(machine: Machine) -> Said:
    """Every requirement of the wheel's metadata, against what would be imported."""
    # Not at the top: the rest can be looked at without it.
    from packaging.requirements import Requirement

    (vllm, *_) = [*find_installed("vllm"), None]
    if vllm is None:
        yield Line(
            "requirements", "unknown", "no installed vllm", do="install the wheel"
        )
        return
    wanted = [Requirement(line) for line in vllm.distribution.requires or ()]
    wanted = [r for r in wanted if r.marker is None or r.marker.evaluate({"extra": ""})]
    for each in wanted:
        name, expected = normalise(each.name), str(each.specifier) or "any version"
        found = find_installed(name)
        do = f"pip install --no-deps '{each.name}{each.specifier}'"
        if name in ON_THE_VENDORS_INDEX:
            do += " --extra-index-url <the vendor's index>"
        if not found:
            yield Line(name, "bad", "none is installed", expected, do)
            continue
        version = found[0].version
        if not each.specifier.contains(version, prereleases=True):
            yield Line(name, "bad", version, expected, do)
        if len(found) > 1:
            others = ", ".join(f"{d.version} in {d.folder}" for d in found[1:])
            both = f"{version} in {found[0].folder}, over {others}"
            do = f"pip uninstall --yes {each.name}, once for each; then {do}"
            yield Line(name, "warn", both, "one installation", do)
    yield f"all {len(wanted)} of {vllm.version}"
