"""The set of tests/constraints.txt, as a Python that may come would read it."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

CONSTRAINTS = Path(__file__).resolve().parents[3] / "tests" / "constraints.txt"
PYTHONS = ("3.10.0", "3.10.20", "3.11.2", "3.11.14", "3.12.3", "3.13.5")


def holds(requirement: Requirement, python: str) -> bool:
    environment = {
        "python_version": python.rpartition(".")[0],
        "python_full_version": python,
        "sys_platform": "linux",
        "os_name": "posix",
    }
    return requirement.marker is None or requirement.marker.evaluate(environment)


def pins(python: str) -> dict[str, Requirement]:
    """Package to the line that is in force for this Python; never two."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    found: dict[str, Requirement] = {}
    for line in filter(None, (line.partition("#")[0].strip() for line in lines)):
        pin = Requirement(line)
        if holds(pin, python):
            assert found.setdefault(canonicalize_name(pin.name), pin) is pin, line
    return found


def misfits(wanted: Iterable[Requirement], python: str) -> Iterator[str]:
    """The requirements that the set has not one version for that they allow."""
    fixed = pins(python)
    for requirement in (one for one in wanted if holds(one, python)):
        pin = fixed.get(canonicalize_name(requirement.name))
        versions = [clause.version for clause in pin.specifier] if pin else []
        if len(versions) != 1 or not requirement.specifier.contains(*versions):
            yield f"{requirement} against {pin}"
