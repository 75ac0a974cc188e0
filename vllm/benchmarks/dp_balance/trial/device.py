# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""What the turns tell of the device, and what the simulator makes of it."""

import contextlib
import math
import statistics
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace

from tqdm import tqdm

from ..calibrate import MIN_STEPS
from ..errors import UsageError
from ..rank.limits import BLOCK_SIZE, RankLimits
from ..requests.arrivals import Frontend
from ..scenario import Scenario, simulate_and_measure
from ..step_time.fit import NEEDED, Fit, fit
from ..step_time.model import LEAST_STEP
from ..step_time.steps import StepSample, read_server_logs
from .endpoint import EXCHANGE_SUM, EXCHANGES
from .figures import SIMULATED
from .load import Load
from .plan import Plan
from .steps import read_steps, spaced
from .turns import Folder, Result, Turn


def exchange_us(results: Sequence[Result]) -> float | None:
    """Mean µs of an exchange on the rank that waits least; None if there was none."""
    found = []
    for result in results:
        counts = result.counters[EXCHANGES]
        sums = result.counters[EXCHANGE_SUM]
        if each := [sums[x] / count for x, count in counts.items() if count]:
            found.append(min(each))
    return 1e6 * statistics.fmean(found) if found else None


def constants(
    folder: Folder, turns: Sequence[Turn], plan: Plan
) -> tuple[Fit | str, dict[str, float]]:
    """What the logs of all turns tell.

    Returns:
        The cost model, or why there is none; and by policy the seconds of the host
        between two steps, an exchange of the ranks among them.
    """
    if not plan.ranks:
        return "the logs of deployments are not read", {}
    if plan.kv_role == "kv_consumer":
        return (
            "the logs do not tell how much the decodes attend to, which decides how "
            "long the steps of a decode instance are"
        ), {}
    samples: list[StepSample] = []
    hosts: dict[str, list[float]] = {}
    for turn in turns:
        if plan.async_scheduling:
            steps = read_steps(folder.file(turn, ".steps"), None)
            samples += spaced(steps, plan.ranks)
            hosts.setdefault(turn.policy, []).append(0.0)
            continue
        with contextlib.suppress(UsageError):
            found = read_server_logs([folder.file(turn, ".server.log")], plan.ranks)
            samples += found.samples
            hosts.setdefault(turn.policy, []).append(found.host_seconds)
    if len(samples) < MIN_STEPS:
        return "the logs have too few steps of all ranks", {}
    by_policy = {policy: statistics.fmean(each) for policy, each in hosts.items()}
    fitted = fit(samples, statistics.fmean(by_policy.values()))
    for name in NEEDED:
        if math.isnan((estimate := getattr(fitted, name)).value):
            return f"the logs do not tell {name} ({estimate.note})", {}
    return fitted, by_policy


def forecast(
    folder: Folder,
    turns: Sequence[Turn],
    results: Sequence[Result],
    load: Load,
    plan: Plan,
    found: Fit | str,
    hosts: Mapping[str, float],
) -> Mapping[str, Mapping[str, float]] | str:
    """Ratios to the base in the simulator, by policy and figure, or why there are none.

    Each round is simulated with the same load and the constants that were found, each
    policy with the time that its host took between two steps.
    """
    if isinstance(found, str):
        return f"the cost of a step is not known: {found}"
    simulated = {}
    base = {turn.round: turn for turn in turns if turn.policy == turns[0].policy}
    blocks = int(results[0].cache.get("num_gpu_blocks", 0))
    blocks = blocks * int(results[0].cache.get("block_size", 0)) // BLOCK_SIZE
    limits = RankLimits(plan.ranks, plan.slots, plan.batched_tokens, blocks or None)
    frontend = Frontend(api_servers=plan.api_servers)
    for turn in tqdm(turns, unit="run", desc="forecast", disable=None):
        workload, traffic = load.as_simulated(folder.file(base[turn.round]))
        host = hosts.get(turn.policy, found.host_seconds) - found.host_seconds
        cost = replace(found.cost, t0=max(LEAST_STEP, found.cost.t0 + host))
        scenario = Scenario(
            *(limits, cost, workload, traffic, frontend, "as-served"),
            async_scheduling=plan.async_scheduling,
        )
        try:
            run = simulate_and_measure(scenario, turn.policy, turn.round)
        except UsageError as error:
            print(f"no forecast: {error}", file=sys.stderr)
            return "the simulator refuses it"
        simulated[turn.policy, turn.round] = run
    ratios: dict[str, dict[str, float]] = {turn.policy: {} for turn in turns}
    for policy, of_policy in ratios.items():
        for name in SIMULATED:
            both = policy, turns[0].policy
            pairs = [[getattr(simulated[x, n], name) for x in both] for n in base]
            if all(own is not None and other for own, other in pairs):
                of_policy[name] = statistics.fmean(own / other for own, other in pairs)
    return ratios
