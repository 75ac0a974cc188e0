# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Reads the file that `calibrate` saves: cost models, and the load they rest on."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .errors import UsageError
from .rank.limits import RankLimits
from .results import read_json
from .step_time.model import CostModel

BEYOND = 1.1
"""So many times the load that was seen is no extrapolation yet."""


class Calibration(NamedTuple):
    """What is used of a fit; see `step_time.fit.Fit`."""

    costs: Sequence[CostModel]
    ranks: int
    most_decodes: float
    most_prefill: float

    @classmethod
    def read(cls, path: Path) -> "Calibration":
        """Reads the file.

        Raises:
            UsageError: it cannot be read, or has no cost model.
        """
        document: Any = read_json(path, "calibrate")
        try:
            fitted = document["fit"]
            costs = [CostModel(**cost) for cost in fitted["costs"]]
            return cls(costs, *(fitted[name] for name in cls._fields[1:]))
        except (KeyError, TypeError):
            raise UsageError(f"{path}: has no cost model.") from None

    def warnings(self, limits: RankLimits) -> Iterator[str]:
        """Sentences about what the simulated server may do and was not seen."""
        if limits.ranks != self.ranks:
            yield (
                f"--data-parallel-size {limits.ranks}: the calibration saw "
                f"{self.ranks} ranks; phi and the time of the exchange depend on it."
            )
        for option, most, what in (
            ("max_num_seqs", self.most_decodes, "decodes"),
            ("max_num_batched_tokens", self.most_prefill, "prompt tokens"),
        ):
            if (given := getattr(limits, option)) > BEYOND * most:
                yield (
                    f"--{option.replace('_', '-')} {given}: the calibration saw at "
                    f"most {most:.0f} {what} in a step of a rank; beyond it the step "
                    "time is extrapolated."
                )
