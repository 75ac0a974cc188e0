# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""`--cost-from`: the cost model that `adaptive` has learned on a server."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vllm_balance.core.policies.cost import StepCost

from ..errors import UsageError
from .results import read_json
from .step_time.learned import cost_model
from .step_time.model import CostModel


def cost_of(source: str, full: int) -> CostModel:
    """The cost model of a server or a file.

    Args:
        source: the URL of a server, the report.json of a trial, or a file that
            `simulate` or `recommend` saved.
        full: `--max-num-batched-tokens` of the server; unused for files of `simulate`
            and `recommend`.

    Raises:
        UsageError: nothing was learned, no answer, or a file of another kind.
    """
    if "://" in source:
        from ..server_api import Endpoint  # needs packages that a clone lacks

        learned = Endpoint(source).figures().costs
        name = "vllm:dp_balance_step_cost_seconds"
        return _learned(learned, full, f"{source}/metrics", name)
    if not (source and Path(source).is_file()):
        raise UsageError(
            f"--cost-from {source}: is no file, and no address of a server; give "
            "http://HOST:PORT, or https."
        )
    document: Any = read_json(Path(source), "trial", "simulate", "recommend")
    if document["format"] == "dp-balance trial":
        seconds = document.get("learned_seconds") or {}
        return _learned(seconds, full, source, "learned_seconds")
    try:
        return CostModel(**document["scenario"]["cost"])
    except (KeyError, TypeError):
        raise UsageError(f"{source}: has no cost model; save it again.") from None
    except UsageError as error:
        raise UsageError(f"{source}: {error}") from None


def _learned(seconds: Mapping[str, Any], full: int, where: str, key: str) -> CostModel:
    """The cost model of learned seconds by part of a step.

    Raises:
        UsageError: a part is missing; the message names `where` and `key`.
    """
    try:
        parts = {name: float(seconds[name]) for name in StepCost._fields}
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            f"{where}: has no {key} of all parts; serve a load with the policy "
            "adaptive first."
        ) from None
    return cost_model(StepCost(**parts), full)
