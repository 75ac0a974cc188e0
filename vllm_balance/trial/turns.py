# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The turns: their order, their folder, and going on where it was stopped."""

import asyncio
import contextlib
import hashlib
import json
import math
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

from ..errors import UsageError
from ..server_api import Endpoint, OtherPolicyError, Scrape
from .load import Load

NO_SPACE = "Finished turns are kept; run the same command again when there is room."


class Turn(NamedTuple):
    """One policy's part of a round."""

    number: int
    """From 1 on."""
    round: int
    """From 0 on; a load of its own."""
    policy: str


def order(policies: Sequence[str], rounds: int) -> list[Turn]:
    """A, B, B, A, A, B, …: what drifts with time meets all alike."""
    both_ways = (list(policies), list(policies)[::-1])
    turns = [(n, policy) for n in range(rounds) for policy in both_ways[n % 2]]
    return [Turn(number, *each) for number, each in enumerate(turns, start=1)]


class Result(NamedTuple):
    """What is known of a turn that has ended well."""

    saved: Mapping[str, Any]
    """As `vllm bench serve --save-detailed` has it."""
    figures: Scrape | None
    """Of its server, at the end; None if they were asked for in vain."""


Serve = Callable[[Turn], AbstractContextManager[Endpoint]]
"""Makes the endpoint of a turn ready."""


class Folder:
    """Where a trial keeps its turns; only what is in `report` is meant for others."""

    def __init__(self, path: Path) -> None:
        self.path, self.report = path, path / "report"

    def file(self, turn: Turn, suffix: str = ".json") -> Path:
        """One of a turn; without a suffix of the caller its result."""
        return self.path / "turns" / f"{turn.number:02d}-{turn.policy}{suffix}"

    def prepare(self, options: object) -> None:
        """Makes it, or goes on with it if it is of the same trial.

        Raises:
            UsageError: it is of another one, or cannot be written.
        """
        state = self.path / "trial.json"
        text = json.dumps(options, sort_keys=True)
        mark = f'"{hashlib.sha256(text.encode()).hexdigest()}"'.encode()
        try:
            names = [path.name for path in self.path.glob("*")]
            if names and (not state.exists() or state.read_bytes() != mark):
                raise UsageError(
                    f"--result-dir {self.path}: has something else, or the turns of "
                    "another trial (model, load, policies or versions differ); give "
                    "another folder."
                )
            for folder in ("turns", "report"):
                (self.path / folder).mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--result-dir {self.path}: {error.strerror}.") from None
        self.write(state, mark.decode())

    def write(self, path: Path, text: str) -> None:
        """Writes a file whole or not at all.

        Raises:
            UsageError: it cannot be written.
        """
        part = path.with_name(f"{path.name}.part")
        try:
            part.write_text(text, encoding="utf-8")
            part.replace(path)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise UsageError(f"{path}: {error.strerror}. {NO_SPACE}") from None

    def result(self, turn: Turn) -> Result | None:
        """Of a turn that has ended well, else None.

        Raises:
            UsageError: it cannot be read.
        """
        if not (path := self.file(turn)).exists():
            return None
        try:
            saved = json.loads(path.read_text(encoding="utf-8"))
            figures = saved.pop("trial")
            return Result(saved, figures and Scrape(**figures))
        except (AttributeError, OSError, ValueError, KeyError, TypeError):
            raise UsageError(f"{path}: is no result of a turn; delete it.") from None


LEAST_ROUNDS = 3
"""That are made, however long they take."""


def run(
    folder: Folder,
    turns: Sequence[Turn],
    serve: Serve,
    load: Load,
    progress: bool,
    minutes: float = math.inf,
) -> list[Result]:
    """Runs what is missing; the results of all turns, in order.

    Args:
        folder: keeps them.
        turns: all of them.
        serve: makes their servers.
        load: what is sent.
        progress: whether to show it on a terminal.
        minutes: after which no round is begun.

    Raises:
        UsageError: a turn failed; those before it are kept.
    """
    found: list[Result] = []
    end = time.monotonic() + 60 * minutes
    done = sum(folder.file(turn).exists() for turn in turns)
    hidden = None if progress else True  # None: unless on a terminal
    with tqdm(total=len(turns), initial=done, unit="turn", disable=hidden) as bar:
        for turn in turns:
            bar.set_description(turn.policy)
            result = folder.result(turn)
            begins = not found or turn.round > turns[len(found) - 1].round
            late = turn.round >= LEAST_ROUNDS and time.monotonic() > end
            if result is None and begins and late:
                break
            if result is None:
                try:
                    result = _run(folder, turn, serve, load)
                except (UsageError, OSError) as error:
                    kept = len(found) + folder.file(turn).exists()
                    raise UsageError(
                        f"turn {turn.number} of {len(turns)}, {turn.policy}: {error} "
                        f"{kept} finished turns are kept; run the same command again "
                        "to go on."
                    ) from None
                bar.update()
            found.append(result)
    return found


def _run(folder: Folder, turn: Turn, serve: Serve, load: Load) -> Result:
    with serve(turn) as endpoint:
        # All policies of a round are sent the same.
        saved, decodes = asyncio.run(_watched(endpoint, load, turn.round))
        _refuse_failed(saved)
        # First: a load may have taken an hour, and the server may have ended with it.
        folder.write(folder.file(turn), json.dumps({**saved, "trial": None}))
        try:
            figures = endpoint.figures(turn.policy)
        except OtherPolicyError:
            folder.file(turn).unlink()
            raise
    if decodes and figures.costs:
        costs = {**figures.costs, "decode": statistics.median(decodes)}
        figures = figures._replace(costs=costs)
    text = json.dumps({**saved, "trial": figures._asdict()})
    folder.write(folder.file(turn), text)
    return Result(saved, figures)


LOOK_EVERY = 5
"""About so many seconds between two looks at what was learned."""


async def _watched(
    endpoint: Endpoint, load: Load, number: int
) -> tuple[Mapping[str, Any], list[float]]:
    """What came of the load, and what decodes took while it was sent.

    At its end the last requests decode alone, and what the newest steps took says
    little of those before. What prompts take is known best at the end.
    """
    sent, decodes, seconds = asyncio.ensure_future(load.send(endpoint, number)), [], 0
    while not sent.done():
        endpoint.watch()
        await asyncio.wait([sent], timeout=1)
        seconds += 1
        if seconds % LOOK_EVERY == 0 and not sent.done():
            with contextlib.suppress(UsageError):  # who is busy is asked at the end
                costs = (await asyncio.to_thread(endpoint.figures)).costs
                decodes += [costs["decode"]] if costs else []
    return await sent, decodes


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
