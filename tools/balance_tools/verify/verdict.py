"""What a verification found, in Markdown for people and JSON for machines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from balance_tools.markdown import table
from balance_tools.verify.ledger import Entry
from balance_tools.verify.pytest_file import count


@dataclass(frozen=True)
class Verdict:
    """The stages of a verification, and the tests that speak against the series."""

    label: str
    stages: Sequence[Entry]
    failing: Sequence[str]

    def groups(self) -> dict[str, list[Entry]]:
        """Return the stages by the kind of their name, in the order they were done."""
        found: dict[str, list[Entry]] = {}
        for stage in self.stages:
            found.setdefault(stage.name.split("/")[0], []).append(stage)
        return found

    def markdown(self) -> str:
        """Return the part of a report."""
        rows = []
        for name, stages in self.groups().items():
            tests = [stage for stage in stages if "path" not in stage.data]
            results = {k: v for stage in tests for k, v in stage.data.items()}
            said = (str(len(tests)), count(results)) if tests else ("–", "–")
            seconds = f"{sum(stage.seconds for stage in stages):.0f}"
            rows.append((name, *said, seconds))
        lines = ["", f"## Verification on {self.label}", ""]
        lines += table(("stage", "test files", "tests", "seconds"), rows)
        total = sum(stage.seconds for stage in self.stages)
        lines += ["", f"{total:.0f} s in all. Newly failing: {len(self.failing)}.", ""]
        lines += [f"- {one}" for one in self.failing]
        return "\n".join(lines) + "\n"

    def data(self) -> dict[str, Any]:
        """Return the same for a program."""
        return {
            "label": self.label,
            "newly_failing": list(self.failing),
            "stages": [
                {"name": stage.name, "seconds": stage.seconds, "result": stage.data}
                for stage in self.stages
            ],
        }

    def write(self, folder: Path) -> Path:
        """Write verify.md and verify.json; return the former."""
        text = json.dumps(self.data(), indent=1) + "\n"
        (folder / "verify.json").write_text(text, encoding="utf-8")
        report = folder / "verify.md"
        report.write_text(self.markdown().lstrip(), encoding="utf-8")
        return report
