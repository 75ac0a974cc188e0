"""What the doctor says: one line for each thing that it looked at."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

State = Literal["ok", "unknown", "warn", "bad"]
STATES: tuple[State, ...] = ("ok", "unknown", "warn", "bad")
"""From the best to the worst. `unknown` is what could not be looked at."""


@dataclass(frozen=True)
class Line:
    """One thing, as it is and as it should be."""

    what: str
    """The thing: `CANN`, `NPU 3`, `rank 2`."""
    state: State
    found: str
    """What is there, or, of what is unknown, why nobody could look."""
    expected: str = ""
    """What should be there; empty where `found` is all there is to say."""
    do: str = ""
    """The repair, a command where there is one; empty for what is ok."""

    def __str__(self) -> str:
        """One line for a person, without what would move the cursor of a terminal.

        Parts of it are what a stranger may have written.
        """
        parts = {"found": self.found, "expected": self.expected, "do": self.do}
        said = "; ".join(f"{name} {text}" for name, text in parts.items() if text)
        line = f"{self.state:<7}  {self.what}: {said}"
        return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in line)


Said = Iterator[Line | str]
"""A check yields its lines, and last what there is if none of them is worse than ok."""


def judged(what: str, found: str, expected: str, do: str, **states: bool) -> Line:
    """A line of the worst state that holds; ok, and no more to say, if none does."""
    state: State = next((s for s in STATES[::-1] if states.get(s)), "ok")
    if state == "ok":
        return Line(what, state, found)
    return Line(what, state, found, expected, do)


def lines_of(what: str, said: Said) -> Iterator[Line]:
    """The lines of a check, also of one that fails itself."""
    is_well = True
    try:
        for each in said:
            if isinstance(each, Line):
                is_well &= each.state == "ok"
                yield each
            elif is_well:
                yield Line(what, "ok", each)
    except Exception as error:
        found = f"could not be looked at: {type(error).__name__}: {error}"
        yield Line(what, "unknown", found)


def worst(lines: Iterable[Line]) -> State:
    """The worst state; `ok` without any line."""
    return max((line.state for line in lines), key=STATES.index, default="ok")


def show(lines: Sequence[Line], as_json: bool) -> str:
    """All lines for a person, or as one JSON document."""
    if as_json:
        document = {"worst": worst(lines), "lines": [asdict(line) for line in lines]}
        return json.dumps(document, indent=1)
    states = [line.state for line in lines]
    counts = [f"{states.count(state)} {state}" for state in reversed(STATES)]
    return "\n".join([*map(str, lines), ", ".join(counts)])
