"""Valid stays valid: what others wrote is taken or refused as by upstream's own checks.

Without HTTP and engines, which would take hours: the functions of the front-end that
look at a request, with the patches' checks and without, each in a process of its own.
"""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from schedulers import ROOT
from shipped_requests import fetched_schemas, written_requests

PROGRAM = Path(__file__).parents[1] / "front_end_answers.py"


def answers(folder, model, bodies, *stock):
    """Of each body: what it was answered, `no answer` if that took too long."""
    told = folder / f"answers-{'-'.join(stock) or 'ours'}"
    told.touch()
    count = len(bodies.read_bytes().splitlines())
    environment = os.environ | {"VLLM_LOGGING_LEVEL": "ERROR", "HF_HUB_OFFLINE": "1"}
    while (begun := len(told.read_text().splitlines())) < count:
        command = [sys.executable, PROGRAM, model, bodies, told, *stock]
        log = (folder / "log").open("ab")
        subprocess.run(command, cwd=folder, env=environment, stdout=log, stderr=log)
        if len(told.read_text().splitlines()) < count:
            assert len(told.read_text().splitlines()) > begun or begun, log.name
            with told.open("a") as file:
                print(json.dumps("no answer"), file=file)
    return [json.loads(line) for line in told.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_what_others_wrote_is_answered_as_by_upstream(dense_model, tmp_path):
    fetched = tmp_path / "packages"
    fetched.mkdir()
    schemas = fetched_schemas(fetched)
    assert len(schemas) >= 2_000
    requests = written_requests(ROOT / "build/pristine/vllm-0.23.0/tests")
    assert len(requests) >= 500
    base = {"prompt": "a"}
    named = [
        (name, base | {"structured_outputs": {"json": schema}})
        for name, schema in schemas.items()
    ]
    named += [(json.dumps(each), base | each) for each in requests]
    bodies = tmp_path / "bodies"
    bodies.write_text("".join(json.dumps(body) + "\n" for _, body in named))
    with ThreadPoolExecutor(2) as pool:
        both = [
            pool.submit(answers, tmp_path, dense_model, bodies, *stock)
            for stock in ((), ("stock",))
        ]
        ours, theirs = (each.result() for each in both)
    rows = zip(named, ours, theirs, strict=True)
    differ = [
        f"{name[:200]}: {our} | upstream: {their}"
        for (name, _), our, their in rows
        if their != "no answer" and our.partition(":")[0] != their.partition(":")[0]
    ]
    taken = sum(each == "taken" for each in theirs)
    print(
        f"{len(named)} requests, upstream takes {taken}; {len(differ)} differ:",
        *differ,
        sep="\n",
    )
    why = ("VLLM_", "ids that the model has no token for")  # written for other models
    assert not [each for each in differ if not any(of in each for of in why)]
