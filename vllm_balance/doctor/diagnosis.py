"""The doctor's diagnoses: one for each thing that was checked, printed as a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["ok", "unknown", "warn", "bad"]
STATES: tuple[State, ...] = ("ok", "unknown", "warn", "bad")
"""From the best to the worst; `unknown` is what could not be checked."""


@dataclass(frozen=True)
class Diagnosis:
    what: str
    """The thing: `CANN`, `NPU 3`, `rank 2`."""
    state: State
    found: str
    """What was found; for `unknown`, why it could not be checked."""
    expected: str = ""
    """What was expected; empty for what is ok."""
    do: str = ""
    """The repair, a command where there is one; empty for what is ok."""

    def __str__(self) -> str:
        """One line for a person, with control characters escaped.

        Parts of it may come from another user's process.
        """
        parts = {"found": self.found, "expected": self.expected, "fix:": self.do}
        body = "; ".join(f"{name} {text}" for name, text in parts.items() if text)
        line = f"{self.state:<7}  {self.what}: {body}"
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


Diagnoses = Iterator[Diagnosis | str]
"""What a check yields: diagnoses, and last a text for the case that all are ok."""


def judged(what: str, found: str, expected: str, do: str, **states: bool) -> Diagnosis:
    """A diagnosis with the worst of the states that hold; without any it is ok.

    What is ok needs neither `expected` nor `do`.
    """
    state: State = next((s for s in STATES[::-1] if states.get(s)), "ok")
    if state == "ok":
        return Diagnosis(what, state, found)
    return Diagnosis(what, state, found, expected, do)


def lines_of(what: str, check: Diagnoses) -> Iterator[Diagnosis]:
    """The diagnoses of a check; one that raises an exception becomes `unknown`."""
    is_ok = True
    try:
        for result in check:
            if isinstance(result, Diagnosis):
                is_ok &= result.state == "ok"
                yield result
            elif is_ok:
                yield Diagnosis(what, "ok", result)
    except Exception as error:
        found = f"could not be looked at: {type(error).__name__}: {error}"
        yield Diagnosis(what, "unknown", found)


def worst(lines: Iterable[Diagnosis]) -> State:
    return max((line.state for line in lines), key=STATES.index, default="ok")


def show(lines: Sequence[Diagnosis], as_json: bool) -> str:
    """All lines for a person, the worst last, or as one JSON document.

    A pod's message, and a terminal, show the end.
    """
    if as_json:
        document = {"worst": worst(lines), "lines": [asdict(line) for line in lines]}
        return json.dumps(document, indent=1)
    states = [line.state for line in lines]
    counts = [f"{states.count(state)} {state}" for state in reversed(STATES)]
    lines = sorted(lines, key=lambda line: STATES.index(line.state))
    return "\n".join([*map(str, lines), ", ".join(counts)])
