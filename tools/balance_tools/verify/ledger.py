"""What a verification has done, kept stage by stage, so that a killed one goes on."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from balance_tools.files import write_atomically

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
        """Return what a stage gives, doing it only if it was not done with `inputs`.

        Args:
            name: Of the stage, a relative path.
            inputs: Everything that its result depends on.
            work: Does it. If its result has a `path` that is gone later, the stage is
                done again.
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
