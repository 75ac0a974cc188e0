# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The file that `calibrate` saves: cost models, and the load that they rest on."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from ..errors import UsageError
from ..rank.limits import RankLimits
from ..results import read_json
from .fit import Fit
from .model import CostModel

BEYOND = 1.1
"""So many times the load that was seen is no extrapolation yet."""


@dataclass(frozen=True)
class Seen:
    """The load that a fit rests on."""

    ranks: int
    most_decodes: float
    """Of any rank in a step."""
    most_prefill: float
    """Prompt tokens of any rank in a step."""

    def warnings(self, limits: RankLimits) -> Iterator[str]:
        """Sentences about what the simulated server may do and was not seen."""
        if limits.ranks != self.ranks:
            yield (
                f"--data-parallel-size {limits.ranks}: the calibration saw "
                f"{self.ranks} ranks; phi and the time of the exchange depend on it."
            )
        if limits.max_num_seqs > BEYOND * self.most_decodes:
            yield (
                f"--max-num-seqs {limits.max_num_seqs}: the calibration saw at most "
                f"{self.most_decodes:.0f} decodes in a step of a rank; beyond it the "
                "step time is extrapolated."
            )
        if limits.max_num_batched_tokens > BEYOND * self.most_prefill:
            yield (
                f"--max-num-batched-tokens {limits.max_num_batched_tokens}: the "
                f"calibration saw at most {self.most_prefill:.0f} prompt tokens in a "
                "step of a rank; beyond it the step time is extrapolated."
            )


@dataclass(frozen=True)
class Calibration:
    """What `calibrate` found."""

    costs: tuple[CostModel, ...]
    """By growing phi; more than one where the data cannot tell it."""
    seen: Seen | None
    """None in files of earlier versions."""


def as_calibration(fitted: Fit) -> dict[str, object]:
    """The parts of the saved document that `read_calibration` needs."""
    seen = Seen(fitted.ranks, fitted.most_decodes, fitted.most_prefill)
    return {
        "cost": asdict(fitted.cost),
        "costs": [asdict(cost) for cost in fitted.costs],
        "seen": asdict(seen),
    }


def read_calibration(path: Path) -> Calibration:
    """Reads the file.

    Raises:
        UsageError: it cannot be read, or has no cost model.
    """
    document = read_json(path, "calibrate")
    values = document.get("costs", [document.get("cost")])
    known = {field.name for field in fields(CostModel)}
    if (
        not isinstance(values, list)
        or not values
        or not all(isinstance(cost, Mapping) and set(cost) <= known for cost in values)
    ):
        raise UsageError(f"{path}: has no cost model.")
    found = document.get("seen")
    seen = Seen(**found) if isinstance(found, dict) else None
    return Calibration(tuple(CostModel(**cost) for cost in values), seen)
