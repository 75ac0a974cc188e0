"""Converts sessions that AIPerf synthesizes for the simulator.

::

    aiperf synthesize agentic-code --num-sessions 60 --seed 42
    python bench/traces/aiperf.py default_60s_seed42_*/dataset.jsonl

AIPerf's rows have what each turn adds. A prompt here has all prompts and answers before
it, too, as it is sent; equal hash ids are equal text in all sessions.
"""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

BLOCK = 512
"""Tokens of a hash id: the default."""


def sessions(rows: Iterable[dict]) -> Iterator[dict]:
    """The sessions in order; only whole blocks have an id that others share."""
    unused = itertools.count(10**6)
    for name, turns in itertools.groupby(rows, lambda row: row["session_id"]):
        requests, sent, blocks = [], 0, 0
        for turn in turns:
            prompt = sent + turn["input_length"]
            new = prompt // BLOCK - blocks
            ids = [next(unused) for _ in range(new)] if requests else turn["hash_ids"]
            spans = _spans(ids[:new])
            think = round(turn.get("delay", 0) / 1e3, 4)
            output = turn["output_length"]
            requests.append([0, prompt, output, 0, think, blocks, spans])
            sent, blocks = prompt + output, blocks + new
        head = {"id": name, "block_size": BLOCK, "hash_id_scope": "global"}
        yield head | {"requests": requests}


def _spans(ids: Iterable[int]) -> list[list[int]]:
    spans: list[list[int]] = []
    for block_id in ids:
        if spans and sum(spans[-1]) == block_id:
            spans[-1][1] += 1
        else:
            spans.append([block_id, 1])
    return spans


if __name__ == "__main__":
    with Path(sys.argv[1]).open(encoding="utf-8") as file:
        for session in sessions(map(json.loads, file)):
            print(json.dumps(session, separators=(",", ":")))
