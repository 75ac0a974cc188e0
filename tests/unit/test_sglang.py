"""The model of SGLang's delayer decides as SGLang's own code did.

Of release 0.5.23, by a run of both on these states; what they decided is recorded.
"""

import hashlib
import random
from collections.abc import Iterator

from vllm.benchmarks.dp_balance.rivals.sglang_delayer import (
    RankState,
    SGLangDelayer0523,
)

RECORDED = "49b31320071c6f04e5ae137f43bc802ed0e94886299ddb963fc770f0be494e12"
"""SHA-256 of all decisions, a 1 for each pass in which ranks may prefill."""


def generated(rng: random.Random, ranks: int, slots: int) -> Iterator[list[RankState]]:
    """States in phases in which all, some or no ranks have something to prefill."""
    for _ in range(30):
        share = rng.choice([0.0, 0.5, 0.9, 1.0, 1.0])
        most = rng.choice([1, 3, 10])
        for _ in range(rng.randint(1, 25)):
            yield [
                RankState(
                    rng.random() < share,
                    rng.randint(0, slots),
                    rng.randint(0, most),
                    slots,
                )
                for _ in range(ranks)
            ]


def test_every_decision_is_that_of_sglang():
    decided = ""
    for case in range(60):
        rng, now = random.Random(case), 0.0
        ranks, slots = rng.choice([2, 4, 8]), rng.choice([4, 16, 64])
        ours = SGLangDelayer0523(
            rng.choice([1, 2, 5, 30, 100]), rng.choice([None, None, 0.1, 0.5])
        )
        for states in generated(rng, ranks, slots):
            now += rng.choice([0.01, 0.1, 1.0])
            decided += "01"[ours.allows(states, now)]
    assert len(decided) == 23_248
    assert decided.count("0") == 10_109
    assert hashlib.sha256(decided.encode()).hexdigest() == RECORDED
