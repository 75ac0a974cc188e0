"""Runs of a long benchmark that are kept on disk, so that it can go on where it was."""

import hashlib
import json
import multiprocessing
import sys
import time
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from tqdm import tqdm

Figures = dict[str, float]
SOURCES = ("vllm.benchmarks.dp_balance", "vllm.v1.core.sched.balance")
"""Packages; of them, the modules that a simulation imports."""
ADAPTIVE_ONLY = ("adaptive", "step_cost", "cycle", "prefill_budget", "decodes")
"""Sources that the other policies do not depend on."""


@lru_cache
def sources_hash(policy: str) -> str:
    """Hash of the sources that a run of the policy depends on.

    Without `ADAPTIVE_ONLY`, unless it is `adaptive`, so that a change of this policy
    does not make the baselines' runs again.
    """
    paths = sorted(
        Path(module.__file__)
        for name, module in sys.modules.items()
        if name.startswith(SOURCES) and module.__file__
    )
    if not policy.startswith("adaptive"):
        paths = [path for path in paths if path.stem not in ADAPTIVE_ONLY]
    return hashlib.sha256(b"".join(map(Path.read_bytes, paths))).hexdigest()


class Task(Protocol):
    """One run."""

    @property
    def key(self) -> str:
        """Names the run, with a hash of all that it depends on."""
        ...


AnyTask = TypeVar("AnyTask", bound=Task)


class KeptRuns(Generic[AnyTask]):
    """The figures of runs, by task."""

    def __init__(
        self,
        path: Path,
        execute: Callable[[AnyTask], tuple[str, Figures]],
        jobs: int,
        minutes: float,
    ) -> None:
        """Reads the runs that have been made.

        Args:
            path: where they are kept, a line of JSON each.
            execute: makes one; a function of a module, for it runs in other processes.
            jobs: how many processes.
            minutes: after so many, no further run is begun.
        """
        self._path = path
        self._execute = execute
        self._jobs = jobs
        self._end = time.monotonic() + 60 * minutes
        self._known: dict[str, Figures] = {}
        if path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                try:
                    key, figures = json.loads(line)
                except ValueError:
                    continue  # the line that was being written when a run was killed
                self._known[key] = figures

    def __contains__(self, task: AnyTask) -> bool:
        return task.key in self._known

    def __getitem__(self, task: AnyTask) -> Figures:
        return self._known[task.key]

    def make(self, title: str, tasks: Sequence[AnyTask]) -> bool:
        """Makes those that are missing, until the time is over; whether all are."""
        missing = [task for task in tasks if task not in self]
        if not missing:
            return True
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with (
            self._path.open("a", encoding="utf-8") as kept,
            multiprocessing.Pool(self._jobs) as pool,
            tqdm(desc=title, total=len(missing), unit="run", mininterval=5) as bar,
        ):
            kept.write("\n")  # ends what a killed run may have left
            for key, figures in pool.imap(self._execute, missing):
                self._known[key] = figures
                kept.write(json.dumps([key, figures]) + "\n")
                kept.flush()
                bar.update()
                if time.monotonic() > self._end:
                    break
        return all(task in self for task in tasks)
