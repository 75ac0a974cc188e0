"""The stages of a verification: kept one by one, so that a killed one goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from balance_tools.files import write_atomically
from balance_tools.text import table
from balance_tools.verify.pytest_file import count

Data = dict[str, str]


@dataclass(frozen=True)
class Entry:
    """A finished stage: what it gave, and how many seconds it took when it ran."""

    name: str
    data: Data
    seconds: float


@dataclass(frozen=True)
class Ledger:
    """One file below `folder` for each stage that is finished."""

    folder: Path

    def once(self, name: str, inputs: Sequence[str], work: Callable[[], Data]) -> Entry:
        """Return what the stage `name` gives; do it only if `inputs` are new.

        It is done again, too, if its result has a `path` that is gone.
        """
        file = self.folder / f"{name}.json"
        if file.is_file():
            known: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
            if known.pop("inputs") == list(inputs):
                stage = Entry(**known)
                if Path(stage.data.get("path", "/")).exists():
                    return stage
        start = time.monotonic()
        stage = Entry(name, work(), round(time.monotonic() - start, 1))
        text = json.dumps({"inputs": list(inputs), **asdict(stage)}, indent=1)
        write_atomically(file, text + "\n")
        return stage


@dataclass(frozen=True)
class Verdict:
    """The stages of a verification, and the tests that speak against the series."""

    label: str
    stages: Sequence[Entry]
    failing: Sequence[str]

    def markdown(self) -> str:
        """Return a table with a row for each kind of stage, and what fails."""
        groups: dict[str, list[Entry]] = {}
        for stage in self.stages:
            groups.setdefault(stage.name.split("/")[0], []).append(stage)
        rows = []
        for name, stages in groups.items():
            tests = [stage for stage in stages if "path" not in stage.data]
            results = {k: v for stage in tests for k, v in stage.data.items()}
            said = (str(len(tests)), count(results)) if tests else ("–", "–")
            rows.append((name, *said, f"{sum(s.seconds for s in stages):.0f}"))
        lines = [f"# Verification on {self.label}", ""]
        lines += table(("stage", "test files", "tests", "seconds"), rows)
        total = sum(stage.seconds for stage in self.stages)
        lines += ["", f"{total:.0f} s in all. Newly failing: {len(self.failing)}.", ""]
        return "\n".join([*lines, *(f"- {one}" for one in self.failing)]) + "\n"
