# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the turns tell of the device, and what the simulator makes of it."""

import contextlib
import statistics
import sys
from collections.abc import Sequence

from tqdm import tqdm

from ..calibrate import MIN_STEPS
from ..errors import UsageError
from ..metrics import Metrics
from ..rank.limits import BLOCK_SIZE, RankLimits
from ..requests.arrivals import Frontend
from ..scenario import Scenario, simulate_and_measure
from ..step_time.fit import Fit, fit
from ..step_time.steps import read_server_logs
from .load import Load
from .plan import Plan
from .steps import read_steps, spaced
from .turns import Folder, Result, Turn

SUM, COUNT = (f"vllm:dp_balance_exchange_seconds_{what}" for what in ("sum", "count"))


def exchange_us(results: Sequence[Result]) -> float | None:
    """Mean µs of an exchange on the rank that waits least; None if there was none."""
    found = [
        min(total / result.counters[COUNT][rank] for rank, total in sums.items())
        for result in results
        if (sums := result.counters.get(SUM)) and all(result.counters[COUNT].values())
    ]
    return 1e6 * statistics.fmean(found) if found else None


def learned(results: Sequence[Result]) -> dict[str, float]:
    """Seconds by part, as `adaptive` learned them; a mean of its turns."""
    costs = [result.costs for result in results if result.costs]
    parts = dict.fromkeys(part for each in costs for part in each)
    return {
        part: statistics.fmean(each[part] for each in costs if part in each)
        for part in parts
    }


def constants(folder: Folder, turns: Sequence[Turn], plan: Plan) -> Fit | str:
    """The cost model by the logs of all turns, or why there is none."""
    if not plan.ranks:
        return "the logs of deployments are not read"
    samples, host = [], [0.0]
    for turn in turns:
        path = folder.turns / turn.name
        if plan.async_scheduling:
            steps = read_steps(path.with_suffix(".steps"), None)
            samples += spaced(steps, plan.ranks)
            continue
        with contextlib.suppress(UsageError):
            found = read_server_logs([path.with_suffix(".server.log")], plan.ranks)
            samples += found.samples
            host.append(found.host_seconds)
    if len(samples) < MIN_STEPS:
        return "the logs have too few steps of all ranks"
    return fit(samples, statistics.fmean(host[1:] or host))


Forecast = dict[str, list[Metrics]]
"""Of each policy the figures of every round."""


def forecast(
    folder: Folder,
    turns: Sequence[Turn],
    results: Sequence[Result],
    load: Load,
    plan: Plan,
    found: Fit | str,
) -> Forecast | str:
    """The same load in the simulator with these constants, or why it is not."""
    if isinstance(found, str):
        return f"the cost of a step is not known: {found}"
    kv_blocks = _blocks(results[0])
    simulated: Forecast = {turn.policy: [] for turn in turns}
    base = turns[0].policy
    saved = {turn.round: folder.bench(turn) for turn in turns if turn.policy == base}
    with tqdm(total=len(turns), unit="run", desc="forecast", disable=None) as bar:
        for turn in sorted(turns, key=lambda turn: turn.round):
            workload, traffic = load.as_simulated(saved[turn.round])
            scenario = Scenario(
                RankLimits(plan.ranks, plan.slots, plan.batched_tokens, kv_blocks),
                found.cost,
                workload,
                traffic,
                Frontend(api_servers=plan.api_servers),
                "as-served",
                async_scheduling=plan.async_scheduling,
            )
            try:
                run = simulate_and_measure(scenario, turn.policy, turn.round)
            except UsageError as error:
                print(f"no forecast: {error}", file=sys.stderr)
                return "the simulator refuses it"
            simulated[turn.policy].append(run)
            bar.update()
    return simulated


def _blocks(result: Result) -> int | None:
    """Of 16 tokens, in the KV cache of a rank; None if it does not say."""
    try:
        blocks = int(result.cache["num_gpu_blocks"])
        return blocks * int(result.cache["block_size"]) // BLOCK_SIZE
    except (KeyError, ValueError):
        return None
