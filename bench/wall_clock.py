"""Renews a wall clock of docs/results.md: a trial on the emulated device.

The report becomes a file of bench/results. A trial that was stopped goes on. Run it on
a machine that does nothing else::

    .venv/bin/python bench/wall_clock.py {slots,trace,sessions,decode}

With ``demo``, the report and the picture are those that `make demo` has left; README.md
shows them.
"""

import argparse
import json
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
sys.path += [str(ROOT / "tools"), str(ROOT)]

from balance_tools.demo.demo import tiny_model
from balance_tools.demo.emulated import ALL_SLOTS, run_trial, serve
from balance_tools.distribution import Choice
from balance_tools.environment.reference import make_env
from balance_tools.paths import Paths
from balance_tools.wheel.build import build_wheel

TRACES = ROOT / "bench" / "traces"


class WallClock(NamedTuple):
    """Options of the trial and of its servers."""

    words: list[str]
    served: list[str]


EVERY = ("--policy", "off", "cap", "align", "adaptive")
LONG_PROMPTS = [
    *("--hf-overrides", '{"max_position_embeddings": 32768}'),
    *("--max-model-len", "20000"),
]
CONSUMER = {"kv_connector": "DecodeBenchConnector", "kv_role": "kv_consumer"}
WALL_CLOCKS = {
    "slots": WallClock([*EVERY, *ALL_SLOTS, "--num-prompts", "160"], serve()),
    # The rate is 90 % of what `off` serves in the simulator with these constants and
    # 10 ms of the host in a step.
    "trace": WallClock(
        [
            *(*EVERY, "--replay", "--length-divisor", "4"),
            *("--dataset-path", str(TRACES / "azure_2023_conv.csv")),
            *("--num-prompts", "160", "--request-rate", "3.1"),
        ],
        serve(),
    ),
    "sessions": WallClock(
        [
            *("--policy", "off", "adaptive", "--replay", "--length-divisor", "16"),
            *("--dataset-path", str(TRACES / "agentx" / "held_out.jsonl")),
            *("--num-prompts", "96", "--session-turns", "12"),
            *("--max-concurrency", "16", "--timed-trace-rate-multiplier", "8"),
        ],
        [
            *(*serve(), *LONG_PROMPTS, "--enable-prefix-caching"),
            *("--num-gpu-blocks-override", "4096", "--block-size", "16"),
        ],
    ),
    # Prompts have arrived with their KV cache, but for the last token. With 24 requests
    # of the trace's mean length, their context takes half of a step. The rate is two
    # thirds of what is served with all slots in use. Steps are slow, since an exchange
    # takes 4 ms where the ranks share two cores.
    "decode": WallClock(
        [
            *("--policy", "off", "adaptive", "--replay", "--length-divisor", "8"),
            *("--dataset-path", str(TRACES / "mooncake_conversation.jsonl")),
            *("--num-prompts", "400", "--request-rate", "6.5"),
        ],
        [
            *(*serve(t0=0.1, a=4e-4, context=2.8e-6), *LONG_PROMPTS),
            *("--max-num-seqs", "24", "--kv-transfer-config", json.dumps(CONSUMER)),
        ],
    ),
}
"""By the name of the result, which begins with `trial_`."""


def main() -> None:
    """Runs the trial, and keeps its report."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("name", choices=[*WALL_CLOCKS, "demo"])
    parser.add_argument("--rounds", default="3")
    args = parser.parse_args()
    paths = Paths.find()
    folder = paths.build / "wall_clock" / args.name
    if args.name == "demo":
        folder = paths.build / "demo" / "gain"
        picture = folder / "report" / "trial.png"
        shutil.copy(picture, ROOT / "docs" / "pictures" / "demo.png")
    else:
        words, served = WALL_CLOCKS[args.name]
        folder.parent.mkdir(parents=True, exist_ok=True)
        wheel = build_wheel(paths, Choice(), paths.dist)
        python = make_env(paths, wheel) / "bin" / "python"
        model = tiny_model(python, folder.parent / "models")
        run_trial(python, folder, model, ["--rounds", args.rounds, *words], served)
    result = ROOT / "bench" / "results" / f"trial_{args.name}.json"
    shutil.copy(folder / "report" / "report.json", result)
    print(f"Wrote {result}; now run bench/pages.py, and see README.md for demo")


if __name__ == "__main__":
    main()
