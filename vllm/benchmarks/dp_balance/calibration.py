# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vllm-balance project
"""The file that `calibrate` saves: cost models, and the load that they rest on."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .errors import UsageError
from .rank.limits import RankLimits
from .results import read_json
from .step_time.fit import Fit
from .step_time.model import CostModel

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
        for option, given, most, what in (
            ("max-num-seqs", limits.max_num_seqs, self.most_decodes, "decodes"),
            (
                "max-num-batched-tokens",
                limits.max_num_batched_tokens,
                self.most_prefill,
                "prompt tokens",
            ),
        ):
            if given > BEYOND * most:
                yield (
                    f"--{option} {given}: the calibration saw at most {most:.0f} "
                    f"{what} in a step of a rank; beyond it the step time is "
                    "extrapolated."
                )


class Calibration(NamedTuple):
    """What `calibrate` found."""

    costs: Sequence[CostModel]
    """By growing phi; more than one where the data cannot tell it."""
    seen: Seen

    @classmethod
    def of(cls, fitted: Fit) -> "Calibration":
        """What the fit found."""
        seen = Seen(fitted.ranks, fitted.most_decodes, fitted.most_prefill)
        return cls(fitted.costs, seen)

    @classmethod
    def read(cls, path: Path) -> "Calibration":
        """Reads the file that `calibrate` saved.

        Raises:
            UsageError: it cannot be read, or has no cost model.
        """
        document: Any = read_json(path, "calibrate")
        try:
            costs = [CostModel(**cost) for cost in document["costs"]]
            return cls(costs, Seen(**document["seen"]))
        except (KeyError, TypeError):
            raise UsageError(f"{path}: has no cost model.") from None

    def as_document(self) -> dict[str, object]:
        """The parts of the file that `read` needs."""
        costs = [asdict(cost) for cost in self.costs]
        return {"costs": costs, "seen": asdict(self.seen)}
