"""Checks the installed software: wheel, requirements, driver, CANN and NNAL."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator
from pathlib import Path

from vllm_balance.doctor.diagnosis import Diagnoses, Diagnosis, judged
from vllm_balance.doctor.machine import Machine
from vllm_balance.doctor.versions import UNKNOWN, order
from vllm_balance.installed import find_installed, normalise
from vllm_balance.start import hooks_that_are_gone, triton_problem
from vllm_balance.verify import NAMES, repair_mixed, strangers

ON_THE_VENDORS_INDEX = ("torch-npu", "triton-ascend")
ASCEND = "/usr/local/Ascend"
CANN = ("CANN", "ASCEND_HOME_PATH", f"source {ASCEND}/ascend-toolkit/set_env.sh")
NNAL = ("NNAL", "ATB_HOME_PATH", f"source {ASCEND}/nnal/atb/set_env.sh")
"""Name, variable of the folder, and the command that sets it."""


def wheel(machine: Machine) -> Diagnoses:
    """The checks that the server makes before it starts, with the same messages."""
    info = machine.info
    if info is None:
        there = "a checkout or an editable install, without a record of its build"
        yield Diagnosis(
            "wheel", "unknown", there, "a wheel", "make wheel; pip install it"
        )
        return
    installed = find_installed(*NAMES)
    for sentence in (*strangers(info, installed), *hooks_that_are_gone(info)):
        where, _, facts = sentence.partition(": expected ")
        expected, _, there = facts.partition(", found ")
        do = repair_mixed(info, installed)
        yield Diagnosis("wheel", "bad", f"{there} in {where}", expected, do)
    if problem := triton_problem():
        there, _, repair = problem.partition(". Repair: ")
        yield Diagnosis(
            "triton-ascend", "bad", there, "Triton that works on NPUs", repair
        )
    yield f"{info.wheel}, Python {platform.python_version()} on {platform.machine()}"


def requirements(machine: Machine) -> Diagnoses:
    """Every requirement of the wheel's metadata, against the installed version."""
    # Not at the top: the other checks work without it.
    from packaging.requirements import Requirement

    (vllm, *_) = [*find_installed("vllm"), None]
    if vllm is None:
        yield Diagnosis(
            "requirements", "unknown", "no installed vllm", do="install the wheel"
        )
        return
    needed = [Requirement(line) for line in vllm.distribution.requires or ()]
    needed = [r for r in needed if r.marker is None or r.marker.evaluate({"extra": ""})]
    for requirement in needed:
        name, specifier = normalise(requirement.name), requirement.specifier
        expected = str(specifier) or "any version"
        installed = find_installed(name)
        do = f"pip install --no-deps '{requirement.name}{specifier}'"
        if name in ON_THE_VENDORS_INDEX:
            do += " --extra-index-url <the vendor's index>"
        if not installed:
            yield Diagnosis(name, "bad", "none is installed", expected, do)
            continue
        version = installed[0].version
        if not specifier.contains(version, prereleases=True):
            yield Diagnosis(name, "bad", version, expected, do)
        if len(installed) > 1:
            others = ", ".join(f"{d.version} in {d.folder}" for d in installed[1:])
            versions = f"{version} in {installed[0].folder}, over {others}"
            do = f"pip uninstall --yes {requirement.name}, once for each; then {do}"
            yield Diagnosis(name, "warn", versions, "one installation", do)
    yield f"all {len(needed)} of {vllm.version}"


def driver(machine: Machine) -> Iterator[Diagnosis]:
    fields, board = machine.fields(f"{ASCEND}/driver/version.info"), machine.smi.board
    version = fields.get("version") or machine.smi.version
    release = machine.version_for("Ascend HDK")
    if not version:
        do = f"mount {ASCEND}/driver of the host, or install the driver"
        found = f"no {ASCEND}/driver/version.info, and no npu-smi that says one"
        yield Diagnosis("driver", "bad", found, "a driver", do)
        return
    do = "install the driver and firmware that CANN's release notes name"
    expected = f"{release} or newer" if release else UNKNOWN
    old = order(version) < order(release)
    yield judged("driver", version, expected, do, warn=old, unknown=not release)
    firmware = machine.fields(f"{ASCEND}/firmware/version.info").get("version")
    firmware = firmware or board.get("firmware version", "")
    compatible = fields.get("compatible_version_fw", "")
    ranges = re.findall(r"\[([^,\]]+),([^,\]]+)\]", compatible)
    is_taken = [_short(low) <= _short(firmware) <= _short(high) for low, high in ranges]
    compatibility = board.get("compatibility", "NA")
    if not re.match(r"\d", firmware) or not (ranges or compatibility != "NA"):
        do = f"cat {ASCEND}/firmware/version.info on the host"
        yield Diagnosis("firmware", "unknown", firmware or "no version here", do=do)
        return
    do = "install driver and firmware of one release, then reboot"
    expected = f"{compatible or 'compatibility OK'}, says the driver"
    bad = bool(ranges and not any(is_taken)) or compatibility not in ("OK", "NA")
    yield judged("firmware", firmware, expected, do, bad=bad)


def _short(version: str) -> tuple[int, ...]:
    return order(version)[:3]


def toolkits(machine: Machine) -> Iterator[Diagnosis]:
    home = machine.environ.get("ASCEND_HOME_PATH", "/-")
    files = machine.glob(f"{home}/*-linux/ascend_toolkit_install.info")
    version = machine.fields(files[0]).get("version") if files else None
    cann, nnal = machine.version_for("CANN"), machine.version_for("NNAL")
    yield _toolkit(machine, *CANN, cann, version)
    # It ends with atb/cxx_abi_1, and the file lies above that.
    atb = Path(machine.environ.get("ATB_HOME_PATH", "/-/-"))
    infos = [machine.fields(f"{f}/version.info") for f in (atb, *atb.parents[:2])]
    version = next((v for info in infos if (v := info.get("ascend-cann-atb"))), None)
    # They are released together, so where the line has no NNAL, CANN's counts.
    yield _toolkit(machine, *NNAL, nnal or cann, version)
    search = machine.environ.get("LD_LIBRARY_PATH", "")
    releases = set(re.findall(r"(?:cann-|ascend-toolkit/|atb/)(\d+\.\d[\w.]*)", search))
    if len(set(map(_short, releases))) > 1:
        do = f"start a new shell, and {CANN[-1]} once"
        versions = " and ".join(sorted(releases))
        yield Diagnosis("LD_LIBRARY_PATH", "bad", versions, "one release of CANN", do)


def _toolkit(
    machine: Machine,
    name: str,
    variable: str,
    set_env: str,
    expected: str,
    version: str | None,
) -> Diagnosis:
    home = machine.environ.get(variable)
    if home is None:
        return Diagnosis(
            name, "bad", f"{variable} is not set", "its environment", set_env
        )
    if not machine.path(home).is_dir():
        do = f"install {name} {expected}, or correct {variable}; then {set_env}"
        return Diagnosis(name, "bad", f"no {home}", f"the folder of {variable}", do)
    if version is None or not expected:
        found = version or f"no version in {home}"
        return Diagnosis(name, "unknown", found, expected or UNKNOWN)
    do = f"install {name} {expected}, then {set_env} in a new shell"
    actual, needed, text = _short(version), _short(expected), f"{version} in {home}"
    return judged(name, text, expected, do, bad=actual < needed, warn=actual > needed)
