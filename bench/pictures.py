"""Draws the picture of the rule, docs/pictures/rent.svg.

::

    python bench/pictures.py
"""

from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import simulated  # noqa: F401  before vllm

# isort: split
from matplotlib import pyplot as plt
from matplotlib.figure import Figure
from vllm.v1.core.sched.balance.core.policies.adaptive import Adaptive
from vllm.v1.core.sched.balance.core.policies.rows import Limits, Row, Snapshot

ROOT = Path(__file__).parents[1]


def rent(step: float = 0.06, full: float = 1.0) -> Figure:
    """What `adaptive` weighs while prompts come to one rank after another.

    On four ranks with 32 requests each: a decode step takes 60 ms, a full step of
    prompts a second more, and each prompt is half of one.
    """
    policy = Adaptive()
    row = Row(*[0] * len(Row._fields))._replace(running=32, decoding=32)
    times, rents, wastes, came = [], [], [], [0.5, 1.5, 2.5]
    for number in range(-600, 200):
        now, learning = number * step, number < 0 and number % 20 == 0
        ages = [now - at for at in came if now > at] if number >= 0 else []
        seconds = step + full / 2 * learning
        rows = [row._replace(step_time_us=int(1e6 * seconds)) for _ in range(4)]
        rows[0] = rows[0]._replace(prefill_tokens=4096 * learning)
        for rank, age in enumerate(ages):
            waits = {"waiting": 1, "pending": 1, "pending_tokens": 4096}
            rows[rank] = rows[rank]._replace(**waits, pending_age_us=int(1e6 * age))
        snapshot = Snapshot.from_rows(rows, [Limits(64, 8192)] * 4)
        cost, decision = policy.learned and policy.learned.cost, policy.decide(snapshot)
        if cost is not None and ages and not decision.admit:
            requests = sum(snapshot.running) + sum(snapshot.waiting)
            load = requests / sum(snapshot.max_running)
            weight = (1 + policy._slack(load)) / (requests * policy._flow.stretch)
            times.append(now)
            rents.append(sum(policy._waiting) * weight)
            wastes.append(cost.waste(0.5, len(ages) / 8, 1 - len(ages) / 4))
        elif ages:
            break
    figure, axis = plt.subplots(figsize=(5, 3))
    axis.plot(times, rents, color="#c0392b", label="rent of those that wait")
    axis.plot(times, wastes, color="#2471a3", label="waste of a release")
    axis.axvline(now, color="#17202a", lw=0.8)
    axis.annotate("release", (now, 0), (-32, 4), textcoords="offset points")
    axis.set(xlabel="seconds", ylabel="seconds of all ranks", ylim=0)
    axis.legend(frameon=False)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    """Draws it; an equal rule gives an equal file."""
    mpl.rcParams.update({"font.size": 8, "svg.hashsalt": "rent"})
    drawn = ROOT / "docs" / "pictures" / "rent.svg"
    rent().savefig(drawn, bbox_inches="tight", metadata={"Date": None})


if __name__ == "__main__":
    main()
