# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`--cost-from`: the cost model that `adaptive` has learned where it served."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from vllm_balance.core.policies.cost import StepCost

from ..errors import UsageError
from .results import read_json
from .step_time.learned import cost_model
from .step_time.model import LEAST_STEP, CostModel


def cost_of(source: str, full: int) -> CostModel:
    """What was learned on a server, or is in a file.

    Args:
        source: the URL of a server, which is asked; the report.json of a trial; or what
            `simulate` or `recommend` saved.
        full: `--max-num-batched-tokens` of the server. A file of `simulate` or
            `recommend` does without.

    Raises:
        UsageError: it has learned nothing, does not answer, or is no such file.
    """
    if "://" in source:
        from ..server_api import Endpoint  # what it needs only a server has

        learned = Endpoint(source).figures().costs
        what = "vllm:dp_balance_step_cost_seconds"
        return _learned(learned, full, f"{source}/metrics", what)
    if not (source and Path(source).is_file()):
        raise UsageError(
            f"--cost-from {source}: is no file, and no address of a server; give "
            "http://HOST:PORT, or https."
        )
    document: Any = read_json(Path(source), "trial", "simulate", "recommend")
    if document["format"] == "dp-balance trial":
        found = document.get("learned_seconds") or {}
        cost = _learned(found, full, source, "learned_seconds")
        cost = _with_decodes(cost, document.get("decode_seconds"), source)
        return _with_prompts(cost, document.get("prompt_seconds"), full, source)
    try:
        return CostModel(**document["scenario"]["cost"])
    except (KeyError, TypeError):
        raise UsageError(f"{source}: has no cost model; save it again.") from None
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def _with_decodes(cost: CostModel, found: Any, where: str) -> CostModel:
    """With what each token adds to a decode step, where the trial could tell.

    `adaptive` has one time for all such steps, and on few requests they are shorter.

    Raises:
        UsageError: it is no such time.
    """
    if found is None:
        return cost
    try:
        return replace(cost, t0=max(LEAST_STEP, found["alone"]), a=found["each"])
    except (KeyError, TypeError):
        raise UsageError(
            f"{where}: decode_seconds is {found!r:.60}; expected alone and each, in "
            "seconds. Make the report again, by the trial's command."
        ) from None


DEEP = 0.5
"""Of `own`: attention that is worth more is no matter of what the log says."""


def _with_prompts(cost: CostModel, found: Any, full: int, where: str) -> CostModel:
    """With what the log says of prompts, where policies made the ranks prefill unlike.

    Not where attention counts: the log does not say what tokens attend to.

    Raises:
        UsageError: it is no such cost.
    """
    own = (1 - cost.phi) * cost.b
    if found is None or cost.attention * full > DEEP * own:
        return cost
    try:
        both = found["own"] + found["shared"]
        phi = found["shared"] / both if both else 0.0
        alike = {"attention": 0.0, "padded": 0.0}
        return replace(cost, b=both, c=found["fixed"], phi=phi, **alike)
    except (KeyError, TypeError):
        raise UsageError(
            f"{where}: prompt_seconds is {found!r:.60}; expected fixed, own and "
            "shared, in seconds. Make the report again, by the trial's command."
        ) from None


def _learned(found: Mapping[str, Any], full: int, where: str, what: str) -> CostModel:
    """From seconds by part of a step.

    Raises:
        UsageError: `what` has not all of them.
    """
    try:
        parts = {name: float(found[name]) for name in StepCost._fields}
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"{where}: has no {what} of all parts; serve a load with the policy "
            "adaptive first."
        ) from None
    return cost_model(StepCost(**parts), full)
