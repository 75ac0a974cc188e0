# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The turns: their order, their folder, and going on where it was stopped."""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from ..errors import UsageError
from .endpoint import Endpoint, Figures
from .figures import figures_of
from .load import Load

ROOM_BYTES = 16 << 20
"""Free on the disk before a turn; logs of an hour take some of it."""
SETTLE_S, PAUSE_S = 60.0, 0.5
COUNTERS = (
    "vllm:dp_balance_exchange_seconds_sum",
    "vllm:dp_balance_exchange_seconds_count",
    "vllm:dp_balance_held_steps_total",
    "vllm:prefix_cache_queries_total",
    "vllm:prefix_cache_hits_total",
    "vllm:generation_tokens_total",
)
"""What of /metrics a turn keeps."""


class Turn(NamedTuple):
    """One policy's part of a round."""

    number: int
    """From 1 on."""
    round: int
    """From 0 on; a load of its own."""
    policy: str

    @property
    def name(self) -> str:
        """Of its files."""
        return f"{self.number:02d}-{self.policy.partition(':')[0]}"


def order(policies: Sequence[str], rounds: int) -> list[Turn]:
    """A, B, B, A, A, B, …: what drifts with time meets all alike."""
    found: list[Turn] = []
    for number in range(rounds):
        for policy in policies if number % 2 == 0 else reversed(policies):
            found.append(Turn(len(found) + 1, number, policy))
    return found


@dataclass(frozen=True)
class Result:
    """What a turn left; written when it has ended well."""

    policy: str
    round: int
    figures: Mapping[str, float]
    counters: Mapping[str, Mapping[str, float]]
    """By name and engine: how much was added in the turn."""
    costs: Mapping[str, float]
    """Seconds by part, as `adaptive` learned them."""
    cache: Mapping[str, str]
    """The configuration of the KV cache."""


Serve = Callable[[Turn, Path], AbstractContextManager[Endpoint]]
"""Makes the endpoint of a turn ready; the path, without suffix, is of its files."""


class Folder:
    """Where a trial keeps its turns; only what is in `report` is meant for others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.turns = path / "turns"
        self.report = path / "report"

    def prepare(self, options: Mapping[str, Any]) -> None:
        """Makes it, or goes on with it if it is of the same trial.

        Raises:
            UsageError: it is of another one, or cannot be written.
        """
        state = self.path / "trial.json"
        text = json.dumps(options, sort_keys=True)
        mark = {"trial": hashlib.sha256(text.encode()).hexdigest()}
        if state.exists():
            try:
                found = json.loads(state.read_text(encoding="utf-8"))
            except (OSError, ValueError):
                found = None
            if found != mark:
                raise UsageError(
                    f"--result-dir {self.path}: has the turns of another trial (model, "
                    "load, policies or versions differ); give another folder."
                )
            return
        if self.path.exists() and any(self.path.iterdir()):
            raise UsageError(
                f"--result-dir {self.path}: is not empty, and not of a trial; give "
                "another folder."
            )
        for folder in (self.turns, self.report):
            self.guarded(folder.mkdir, parents=True, exist_ok=True)
        self.write(state, mark)

    def write(self, path: Path, document: Any) -> None:
        """Writes JSON, or text, whole or not at all.

        Raises:
            UsageError: it cannot be written.
        """
        text = document
        if not isinstance(document, str):
            text = json.dumps(document, indent=1, ensure_ascii=False) + "\n"
        part = path.with_name(f"{path.name}.part")
        try:
            self.guarded(part.write_text, text, encoding="utf-8")
            self.guarded(os.replace, part, path)
        finally:
            part.unlink(missing_ok=True)

    def guarded(self, write: Callable[..., object], *args: Any, **more: Any) -> None:
        """Calls what writes below it.

        Raises:
            UsageError: the disk refuses.
        """
        try:
            write(*args, **more)
        except OSError as error:
            raise UsageError(
                f"--result-dir {self.path}: cannot be written ({error.strerror}). "
                "Finished turns are kept; run the same command again when it can."
            ) from None

    def refuse_full(self) -> None:
        """Looks whether the disk has room for a turn.

        Raises:
            UsageError: it has not.
        """
        if (free := shutil.disk_usage(self.path).free) < ROOM_BYTES:
            raise UsageError(
                f"--result-dir {self.path}: {free >> 20} MiB are free on its disk, "
                f"{ROOM_BYTES >> 20} are needed. Finished turns are kept; free some, "
                "and run the same command again."
            )

    def bench(self, turn: Turn) -> Path:
        """What `vllm bench serve` saved, or would have."""
        return self.turns / f"{turn.name}.bench.json"

    def result(self, turn: Turn) -> Result | None:
        """Of a turn that has ended well, else None."""
        path = self.turns / f"{turn.name}.json"
        if not path.exists():
            return None
        try:
            return Result(**json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                f"{path}: cannot be read ({error}); delete it, and run the same "
                "command again."
            ) from None


def run(
    folder: Folder,
    turns: Sequence[Turn],
    serve: Serve,
    load: Load,
    show_progress: bool = True,
) -> list[Result]:
    """Runs what is missing; the results of all turns, in order.

    Raises:
        UsageError: a turn failed; those before it are kept.
    """
    found: list[Result] = []
    with tqdm(
        total=len(turns), unit="turn", desc="trial", disable=not show_progress or None
    ) as bar:
        for turn in turns:
            result = folder.result(turn)
            if result is None:
                bar.set_postfix_str(turn.policy)
                bar.refresh()
                folder.refuse_full()
                try:
                    result = _run(folder, turn, serve, load)
                except UsageError as error:
                    folder.refuse_full()
                    raise UsageError(
                        f"turn {turn.number} of {len(turns)}, {turn.policy}: {error} "
                        f"{len(found)} finished turns are kept; run the same command "
                        "again to go on."
                    ) from None
            else:
                bar.initial += 1  # not counted in the time that is left
            found.append(result)
            bar.update()
    return found


def _run(folder: Folder, turn: Turn, serve: Serve, load: Load) -> Result:
    path = folder.turns / turn.name
    saved_path = folder.bench(turn)
    saved_path.unlink(missing_ok=True)
    with serve(turn, path) as endpoint:
        before = endpoint.figures()
        try:
            load.send(endpoint, saved_path, turn.round)
        except OSError as error:
            raise UsageError(f"{saved_path}: {error.strerror}.") from None
        after = _settled(endpoint)
        saved = _read(saved_path)
        _refuse_failed(saved)
        endpoint.refuse_other_policy(turn.policy.partition(":")[0])
    result = Result(
        policy=turn.policy,
        round=turn.round,
        figures=figures_of(saved),
        counters={
            name: after.since(before, name) for name in COUNTERS if name in after.sums
        },
        costs=after.costs,
        cache=after.cache,
    )
    folder.write(folder.turns / f"{turn.name}.json", asdict(result))
    return result


def _read(path: Path) -> Mapping[str, Any]:
    try:
        document: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: is no result ({error}).") from None
    return document


def _refuse_failed(saved: Mapping[str, Any]) -> None:
    """Looks whether all requests were answered.

    Raises:
        UsageError: some were not.
    """
    failed, completed = saved.get("failed", 0), saved.get("completed", 0)
    if failed or not completed:
        errors = [error for error in saved.get("errors", ()) if error]
        last = errors[0].strip().splitlines()[-1] if errors else "none says why"
        raise UsageError(
            f"{failed} of {failed + completed} requests failed, the first with: {last}."
        )


def _settled(endpoint: Endpoint) -> Figures:
    """The figures once the ranks have stopped: their steps outlast the answers."""
    before = endpoint.figures()
    for _ in range(int(SETTLE_S / PAUSE_S)):
        time.sleep(PAUSE_S)
        now = endpoint.figures()
        if all(now.sums.get(x) == before.sums.get(x) for x in COUNTERS):
            break
        before = now
    return now
