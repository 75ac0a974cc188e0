"""The model of SGLang's delayer decides as SGLang's own code did.

Of release 0.5.23, by a run of both on these states; what they decided is recorded.
"""

import hashlib
import random

from rivals.sglang import RankState, SGLangDelayer0523

RECORDED = "b22eb9f56959aa89577a7e43d28728743bf558a128a7a0f6fc8fd30aa05001f2"
"""SHA-256 of all decisions, a 1 for each pass in which ranks may prefill."""


def generated(rng, ranks, slots):
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
        rng = random.Random(case)
        ranks, slots = rng.choice([2, 4, 8]), rng.choice([4, 16, 64])
        ours = SGLangDelayer0523(rng.choice([1, 2, 5, 30, 100]))
        if rng.choice([False, False, True, True]):
            continue  # was run with SGLang's queue trigger
        for states in generated(rng, ranks, slots):
            rng.choice([0.01, 0.1, 1.0])  # seconds, which the trigger knows
            decided += "01"[ours.allows(states)]
    assert len(decided) == 9833
    assert decided.count("0") == 4788
    assert hashlib.sha256(decided.encode()).hexdigest() == RECORDED
