# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What steps cost on a running server: from its log, or from what clients saw."""

import json
import re
import statistics
from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

from ..errors import UsageError


class StepSample(NamedTuple):
    """One step that was measured; a value per rank."""

    seconds: float
    prefill: tuple[float, ...]
    """Prompt tokens."""
    decodes: tuple[float, ...]
    """Requests that decoded."""
    context: tuple[float, ...] = ()
    """Tokens that the decodes attended to; empty where it is not known."""
    attended: tuple[float, ...] = ()
    """Tokens that the prompt tokens attended to; empty where it is not known."""
    ends_interval: bool = True
    """False where only the sum of this and later steps was measured; then `seconds`
    is 0, and the step that ends the interval has the time of all."""


class ServerLog(NamedTuple):
    """What a server's log tells."""

    samples: list[StepSample]
    host_seconds: float
    """Mean time between the steps of a busy server: scheduling and output."""


class _Iteration(NamedTuple):
    seconds: float
    prefill: float
    decodes: float
    clock: datetime


# Without the name of the rank: when several ranks write at once, it comes apart from
# the rest of the line. Ranks are alike to the cost model, so it is not needed. Later
# releases log from the front-end, which numbers the engines.
_ITERATION = re.compile(
    r"(?P<clock>\d\d-\d\d \d\d:\d\d:\d\d) \[\S+\] (?:Engine \d+: )?"
    r"Iteration\((?P<number>\d+)\): "
    r"\d+ context requests, (?P<prefill>\d+) context tokens, "
    r"(?P<decodes>\d+) generation requests, \d+ generation tokens, "
    r"iteration elapsed time: (?P<ms>[\d.]+) ms"
)


def read_server_logs(paths: Sequence[Path], ranks: int) -> ServerLog:
    """Reads the steps that `vllm serve --enable-logging-iteration-details` logged.

    Args:
        paths: the log of each node; together they cover all ranks, of one start.
        ranks: the data parallel size.

    Raises:
        UsageError: a file cannot be read, or steps were not logged by so many ranks.
    """
    steps: defaultdict[int, list[_Iteration]] = defaultdict(list)
    for path in paths:
        for match in _ITERATION.finditer(_read(path)):
            steps[int(match["number"])].append(
                _Iteration(
                    seconds=float(match["ms"]) / 1e3,
                    prefill=float(match["prefill"]),
                    decodes=float(match["decodes"]),
                    # The log names no year; a leap year has all days.
                    clock=datetime.strptime(
                        f"2024-{match['clock']}", "%Y-%m-%d %H:%M:%S"
                    ),
                )
            )
    complete = [step for _, step in sorted(steps.items()) if len(step) == ranks]
    if len(complete) * 2 <= len(steps):
        found = statistics.mode(map(len, steps.values())) if steps else 0
        raise UsageError(
            f"{', '.join(map(str, paths))}: most steps were logged by {found} ranks, "
            f"not by {ranks}; start the server once, with "
            "--enable-logging-iteration-details, and give the logs of all nodes."
        )
    samples = [
        StepSample(
            # The rank that starts its step last waits for no other.
            min(iteration.seconds for iteration in step),
            tuple(iteration.prefill for iteration in step),
            tuple(iteration.decodes for iteration in step),
        )
        for step in complete
    ]
    return ServerLog(samples, _host_seconds(samples, [s[0].clock for s in complete]))


def _host_seconds(samples: Sequence[StepSample], clocks: Sequence[datetime]) -> float:
    """Mean time between two steps, in the longest stretch without a pause.

    The clocks are whole seconds, so a single gap tells nothing; over a long stretch
    the rounding of its two ends does not matter.
    """
    stretches = [[0]]
    for i in range(1, len(samples)):
        gap = (clocks[i] - clocks[i - 1]).total_seconds()
        if gap > samples[i].seconds + 1:
            stretches.append([])
        stretches[-1].append(i)
    stretch = max(stretches, key=len)
    elapsed = (clocks[stretch[-1]] - clocks[stretch[0]]).total_seconds()
    beside = elapsed - sum(samples[i].seconds for i in stretch[1:])
    return max(0.0, beside / len(stretch))


def read_client_result(
    path: Path, ranks: int, max_num_batched_tokens: int
) -> list[StepSample]:
    """Reconstructs steps from the tokens that clients received.

    Tokens of one step reach all clients together, so token times form clusters, one
    per step. Which rank served a request is not known: decodes are taken as shared
    out evenly, and of the steps that prefill only those of one whole prompt are kept.

    Args:
        path: a result of `vllm bench serve --save-result --save-detailed`.
        ranks: the data parallel size.
        max_num_batched_tokens: the limit of a rank's step.

    Raises:
        UsageError: the file cannot be read or has no times of tokens.
    """
    requests = _read_requests(path)
    times = [
        (start + offset, number == 0, prompt)
        for start, ttft, itls, prompt in requests
        if ttft > 0
        for number, offset in enumerate(accumulate(itls, initial=ttft))
    ]
    gaps = sorted(gap for _, _, itls, _ in requests for gap in itls)
    # Between steps a decode step passes; within a step, clients are much closer.
    steps = _clusters(sorted(times), gaps[len(gaps) // 4] / 2 if gaps else 0.0)
    samples = []
    for before, step, after in zip(steps, steps[1:], steps[2:], strict=False):
        # A first token in a neighbouring step may mean a chunk of its prompt in this.
        if before.prompts or after.prompts or len(step.prompts) > 1:
            continue
        prefill = sum(step.prompts)
        decodes = step.decodes / ranks
        if prefill + decodes > max_num_batched_tokens:
            continue
        samples.append(
            StepSample(
                step.time - before.time,
                (float(prefill), *[0.0] * (ranks - 1)),
                (decodes,) * ranks,
            )
        )
    if not samples:
        raise UsageError(
            f"{path}: shows no step that can be told apart; send requests more slowly "
            "(--request-rate), so that prompts are not prefilled in every step."
        )
    return samples


def _read_requests(path: Path) -> list[tuple[float, float, list[float], int]]:
    """Start, TTFT, latencies between tokens (seconds) and prompt length of each."""
    try:
        result = json.loads(_read(path))
        return list(
            zip(
                result["start_times"],
                result["ttfts"],
                result["itls"],
                result["input_lens"],
                strict=True,
            )
        )
    except (ValueError, KeyError, TypeError):
        raise UsageError(
            f"{path}: not a detailed result; save one with `vllm bench serve "
            "--save-result --save-detailed`."
        ) from None


class _Cluster(NamedTuple):
    time: float
    decodes: int
    prompts: tuple[int, ...]
    """Prompt lengths of the requests that got their first token."""


def _clusters(
    times: Sequence[tuple[float, bool, int]], threshold: float
) -> list[_Cluster]:
    """Steps, from (time, is first token, prompt length) of all tokens, in order.

    Tokens less than `threshold` seconds apart are of one step.
    """
    groups: list[list[tuple[float, bool, int]]] = []
    for time in times:
        if not groups or time[0] - groups[-1][-1][0] > threshold:
            groups.append([])
        groups[-1].append(time)
    return [
        _Cluster(
            group[len(group) // 2][0],
            sum(not first for _, first, _ in group),
            tuple(prompt for _, first, prompt in group if first),
        )
        for group in groups
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror}).") from None
