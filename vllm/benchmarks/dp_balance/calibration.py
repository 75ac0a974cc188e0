# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""Reads the file that `calibrate` saves: cost models, and the load they rest on."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .errors import UsageError
from .rank.limits import RankLimits
from .results import read_json
from .step_time.model import CostModel

BEYOND = 1.1
"""Up to this multiple of the load that was seen is no extrapolation."""


class Calibration(NamedTuple):
    """What is used of a fit; see `step_time.fit.Fit`."""

    costs: Sequence[CostModel]
    unknown: Mapping[str, str]
    """By name, why the load does not tell a constant that every run needs."""
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
            unknown = {
                name: fitted[name]["note"]
                for name in ("a", "b")
                if fitted[name]["value"] is None
            }
            figures = [fitted[name] for name in cls._fields[2:]]
            if not costs or not all(0 <= figure < math.inf for figure in figures):
                raise TypeError
            return cls(costs, unknown, *figures)
        except (KeyError, TypeError):
            raise UsageError(f"{path}: has no cost model.") from None
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None

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
