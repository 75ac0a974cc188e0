# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`--cost-from`: the cost model that `adaptive` has learned where it served."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_balance.core.policies.cost import StepCost

from ..errors import UsageError
from .results import read_json
from .step_time.learned import cost_model
from .step_time.model import CostModel


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
        return _learned(found, full, source, "learned_seconds")
    try:
        return CostModel(**document["scenario"]["cost"])
    except (KeyError, TypeError):
        raise UsageError(f"{source}: has no cost model; save it again.") from None
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


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
