"""What is simulated of upstream's deployments, whose facts are in deployments.tsv."""

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from grids import Cell
from vllm.benchmarks.dp_balance.front_end.load_balancers import AS_SERVED
from vllm.benchmarks.dp_balance.rank.limits import RankLimits
from vllm.benchmarks.dp_balance.requests.arrivals import ClientTraffic
from vllm.benchmarks.dp_balance.scenario import Scenario, Workload
from vllm.benchmarks.dp_balance.step_time.model import CostModel
from vllm.benchmarks.dp_balance.step_time.presets import PRESETS


class Deployment(NamedTuple):
    """How upstream serves and measures models, by what a scenario depends on."""

    ranks: int
    slots: int
    step_tokens: int
    drafts: int
    asynchronous: bool
    clients: int
    prompts: int
    prompt_len: int
    hits: int
    """Per cent of the prompt that is cached."""
    output_len: int

    def scenario(self, cost: CostModel, times: int) -> Scenario:
        """The same deployment, `times` as long."""
        return Scenario(
            RankLimits(
                *(self.ranks, self.slots, self.step_tokens),
                acceptance_rates=ACCEPTANCE[: self.drafts],
            ),
            cost,
            Workload(
                *(times * self.prompts, str(self.prompt_len), str(self.output_len)),
                prefix_share=self.hits / 100,
                num_prefixes=1,
                prefixes_cached=True,
            ),
            ClientTraffic(max_concurrency=self.clients),
            load_balancer=AS_SERVED,
            async_scheduling=self.asynchronous,
        )


ACCEPTANCE = 0.85, 0.65, 0.5, 0.4, 0.3, 0.2, 0.15
"""Assumed: upstream does not say how many drafts are accepted."""
WORLDS = {
    "A3": PRESETS["a3-dp4-tp4"],
    "A3, padded": PRESETS["a3-dp4-tp4-padded"],
    "A2": PRESETS["a2-dp4-tp4"],
}
ON_DEPLOYMENTS = (
    *("adaptive", "off", "cap", "align", "sglang-30", "sglang-100"),
    *("sglang23-30", "trtllm"),
)


def model(config: str) -> str:
    """The model of a configuration, by its name."""
    name = re.match(r"[A-Za-z]+-?[A-Z]?\d+[._]\d+", config)
    assert name is not None, config
    return name[0].replace("_", ".")


def deployments() -> Iterator[Cell]:
    """What upstream serves with its switch on, as measured and six times as long."""
    alike: dict[Deployment, list[dict[str, str]]] = {}
    with (Path(__file__).parent / "deployments.tsv").open(encoding="utf-8") as file:
        for row in csv.DictReader(file, delimiter="\t"):
            numbers = row | {"asynchronous": row["async"] == "yes"}
            made = Deployment(*(int(numbers[name]) for name in Deployment._fields))
            alike.setdefault(made, []).append(row)
    for deployment, rows in alike.items():
        facts = deployment._asdict() | {
            "models": sorted({model(row["config"]) for row in rows}),
            "published": [float(r["published"]) for r in rows if r["published"] != "-"],
        }
        for world, cost in WORLDS.items():
            for times in (1, 6):
                labels = {**facts, "cost": world, "times": times}
                scenario = deployment.scenario(cost, times)
                if all(name.startswith("GLM") for name in facts["models"]):
                    # Their sparse attention projects nothing anew.
                    scenario = replace(scenario, cost=replace(cost, projection=0.0))
                yield Cell(labels, scenario, ON_DEPLOYMENTS, (0, 1))
