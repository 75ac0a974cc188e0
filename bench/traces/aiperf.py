"""Writes what AIPerf synthesizes as sessions of the simulator.

::

    aiperf synthesize agentic-code --num-sessions 60 --seed 42
    python bench/traces/aiperf.py default_60s_seed42_*/dataset.jsonl

AIPerf's rows say what each turn adds. A prompt here is all prompts and answers before
it and what it adds, as it is sent; equal hash ids are equal text in all sessions.
"""

import itertools
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

BLOCK = 512
"""Tokens of a hash id: the default."""


def sessions(rows: Iterable[dict]) -> Iterator[dict]:
    """In order; only whole blocks have an id that others find."""
    unused = itertools.count(10**6)
    for name, turns in itertools.groupby(rows, lambda row: row["session_id"]):
        requests, sent, kept = [], 0, 0
        for turn in turns:
            prompt = sent + turn["input_length"]
            new = prompt // BLOCK - kept
            ids = [next(unused) for _ in range(new)] if requests else turn["hash_ids"]
            spans = _spans(ids[:new])
            think = round(turn.get("delay", 0) / 1e3, 4)
            output = turn["output_length"]
            requests.append([0, prompt, output, 0, think, kept, spans])
            sent, kept = prompt + output, kept + new
        head = {"id": name, "block_size": BLOCK, "hash_id_scope": "global"}
        yield head | {"requests": requests}


def _spans(ids: Iterable[int]) -> list[list[int]]:
    found: list[list[int]] = []
    for each in ids:
        if found and sum(found[-1]) == each:
            found[-1][1] += 1
        else:
            found.append([each, 1])
    return found


if __name__ == "__main__":
    with Path(sys.argv[1]).open(encoding="utf-8") as file:
        for session in sessions(map(json.loads, file)):
            print(json.dumps(session, separators=(",", ":")))
