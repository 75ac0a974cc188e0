"""Driver, firmware, CANN and NNAL: versions, environment, libraries."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from vllm_balance.doctor.lines import Line
from vllm_balance.doctor.machine import Machine
from vllm_balance.doctor.versions import Fact, order

ASCEND = "/usr/local/Ascend"
SET_ENV = f"source {ASCEND}/ascend-toolkit/set_env.sh"
SET_ENV_OF_NNAL = f"source {ASCEND}/nnal/atb/set_env.sh"
LIBRARIES = {
    "libascend_hal.so": f"add {ASCEND}/driver/lib64{{,/common,/driver}} of the host "
    "to LD_LIBRARY_PATH",
    "libascendcl.so": SET_ENV,
    "libhccl.so": SET_ENV,
    "libatb.so": SET_ENV_OF_NNAL,
}
"""What is opened at start, to what makes the loader find it."""
BOUND_AT_START = ("torch_npu/lib/libop_plugin_atb.so", "vllm_ascend/*.so")
"""Python resolves all symbols of what it imports, so one that is missing ends it."""
WITH_THEM = ("torch/lib", "torch_npu/lib", "vllm_ascend", "vllm_ascend/lib")


def driver(machine: Machine) -> Iterator[Line]:
    """The driver against the table, and the firmware against the driver."""
    fields = machine.fields(f"{ASCEND}/driver/version.info")
    version = fields.get("version") or machine.smi.version
    if not version:
        do = f"mount {ASCEND}/driver of the host, or install the driver"
        found = f"no {ASCEND}/driver/version.info, and npu-smi does not say one"
        yield Line("driver", "bad", found, "a driver", do)
        return
    fact = _fact(machine, "Ascend HDK")
    if not fact.version:
        yield Line("driver", "unknown", version, f"not known: {fact.says}")
    elif order(version) < order(fact.version):
        do = "install the driver and firmware that CANN's release notes name"
        yield Line("driver", "warn", version, f"{fact.version} or newer", do)
    else:
        yield Line("driver", "ok", version)
    firmware = machine.fields(f"{ASCEND}/firmware/version.info").get("version")
    firmware = firmware or machine.smi.board.get("firmware version", "")
    ranges = re.findall(r"\[([^,\]]+),([^,\]]+)\]", fields.get(_FIRMWARE, ""))
    says = machine.smi.board.get("compatibility", "")
    expected = " or ".join(f"{low} to {high}" for low, high in ranges)
    do = "install driver and firmware of one release, then reboot"
    if not re.match(r"\d", firmware) or not (ranges or says):
        do = "cat /usr/local/Ascend/firmware/version.info on the host"
        yield Line("firmware", "unknown", firmware or "no version here", do=do)
    elif ranges and not any(_within(firmware, low, high) for low, high in ranges):
        yield Line("firmware", "bad", firmware, f"{expected}, says the driver", do)
    elif says not in ("", "OK", "NA"):
        yield Line("firmware", "bad", f"{firmware}, {says}", "compatibility OK", do)
    else:
        yield Line("firmware", "ok", firmware)


_FIRMWARE = "compatible_version_fw"


def _within(version: str, low: str, high: str) -> bool:
    return order(low) <= order(version) and order(version)[:3] <= order(high)[:3]


def _fact(machine: Machine, name: str) -> Fact:
    return (machine.stack or {}).get(name, Fact("", "no table for this line"))


def toolkits(machine: Machine) -> Iterator[Line]:
    """CANN and NNAL: what the environment points to."""
    home = machine.environ.get("ASCEND_HOME_PATH")
    info = [] if home is None else machine.glob(f"{home}/*-linux/{_TOOLKIT_INFO}")
    version = machine.fields(info[0]).get("version") if info else None
    yield _toolkit(machine, "CANN", "ASCEND_HOME_PATH", home, version, SET_ENV)
    atb = machine.environ.get("ATB_HOME_PATH")
    version = None
    # It ends with atb/cxx_abi_1, and the file lies above that.
    for folder in (atb, *map(str, list(Path(atb or "/").parents)[:2])):
        version = version or machine.fields(f"{folder}/version.info").get(_NNAL)
    yield _toolkit(machine, "NNAL", "ATB_HOME_PATH", atb, version, SET_ENV_OF_NNAL)
    search = machine.environ.get("LD_LIBRARY_PATH", "")
    found = set(re.findall(r"(?:cann-|ascend-toolkit/|atb/)(\d+\.\d[\w.]*)", search))
    if len(found) > 1:
        do = f"start a new shell, and {SET_ENV} once"
        versions = " and ".join(sorted(found))
        yield Line("LD_LIBRARY_PATH", "bad", versions, "one release of CANN", do)


_TOOLKIT_INFO = "ascend_toolkit_install.info"
_NNAL = "ascend-cann-atb"


def _toolkit(
    machine: Machine,
    name: str,
    variable: str,
    home: str | None,
    version: str | None,
    set_env: str,
) -> Line:
    fact = _fact(machine, name)
    if name == "NNAL" and not fact.version:  # the two are released together
        fact = _fact(machine, "CANN")
    if home is None:
        return Line(name, "bad", f"{variable} is not set", "its environment", set_env)
    if not machine.path(home).is_dir():
        do = f"install {name} {fact.version}, or fix {variable}; then {set_env}"
        return Line(name, "bad", f"no {home}", "the folder of " + variable, do)
    if version is None or not fact.version:
        found = version or f"no version in {home}"
        return Line(name, "unknown", found, fact.version or fact.says)
    if order(version) != order(fact.version):
        state = "bad" if order(version) < order(fact.version) else "warn"
        do = f"install {name} {fact.version}, then {set_env} in a new shell"
        return Line(name, state, version, fact.version, do)  # type: ignore[arg-type]
    return Line(name, "ok", f"{version} in {home}")


def libraries(machine: Machine) -> Iterator[Line]:
    """What the loader finds, and whether all symbols do; nothing is run or loaded."""
    search = machine.environ.get("LD_LIBRARY_PATH", "")
    folders = [machine.path(name) for name in search.split(":") if name]
    wrong = False
    for name, do in LIBRARIES.items():
        path = next((f / name for f in folders if (f / name).exists()), None)
        found = "in no folder of LD_LIBRARY_PATH"
        if path is None or (found := _problem(machine, path, folders)):
            yield Line(name, "bad", found, "a library that loads", do)
            wrong = True
    specs = [find_spec(name) for name in ("torch_npu", "vllm_ascend")]
    roots = [Path(s.origin).parents[1] for s in specs if s and s.origin]
    folders += [root / name for root in roots for name in WITH_THEM]
    bound = {p for root in roots for name in BOUND_AT_START for p in root.glob(name)}
    for path in sorted(bound):
        if found := _problem(machine, path, folders, "-r"):
            do = "install CANN, NNAL and torch-npu of one line; see their lines here"
            yield Line(path.name, "bad", found, "all that it is linked to", do)
            wrong = True
    if not wrong:
        yield Line("libraries", "ok", f"{len(LIBRARIES) + len(bound)} load")


def _problem(
    machine: Machine, path: Path, folders: Sequence[Path], *options: str
) -> str:
    """What the loader would say; empty when nothing. `-r` looks for symbols, too."""
    search = ":".join(map(str, folders))
    output = machine.run("ldd", *options, str(path), LD_LIBRARY_PATH=search)
    found = re.findall(r"^\s*(\S+ => not found)", output.text, re.M)
    symbols = re.findall(r"undefined symbol: (\S+)", output.text)
    # Those of Python are in the program that imports it.
    found += [f"undefined {name}" for name in symbols if not re.match("_?Py", name)]
    if output.problem and not found:
        found = [f"{output.text.strip() or output.problem}"]
    if not found:
        return ""
    more = f" and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{path}: {found[0]}{more}"
