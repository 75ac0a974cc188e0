"""Published vulnerabilities: what comes is refused, and others are served.

The limits are so low that nothing here would cost a server anything.
"""

import json
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import pytest

from vllm_server import Server, direct

GOOD = {
    "prompt": [5, 6],
    "max_tokens": 4,
    "temperature": 0,
    "ignore_eos": False,
    "return_token_ids": True,
}
REGEX = {"structured_outputs": {"regex": "[ab]c"}}


def constraint(**of):
    return {"structured_outputs": of}


def words(count):
    return [f"c{i:07d}" for i in range(count)]


def response_format(schema):
    of = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    return {"response_format": of}


LONG, BODY = "VLLM_MAX_GRAMMAR_BYTES", "VLLM_HTTP_MAX_REQUEST_BODY_SIZE"
PROMPTS, SALT = "VLLM_MAX_COMPLETION_PROMPTS", "VLLM_MAX_CACHE_SALT_LENGTH"
LIMITS = {LONG: "8192", PROMPTS: "3", SALT: "8", BODY: "65536"}
"""Far below what is usual, so that little passes them."""
REFUSED = [
    # GHSA-rwxx-mrjm-wc2m, and schemas, grammars and choices with it.
    (constraint(regex="|".join(words(1_000))), LONG),
    (constraint(json={"enum": words(1_000)}), LONG),
    (constraint(json=json.dumps({"enum": words(1_000)})), LONG),
    (constraint(json={"enum": words(3_000)}), LONG),  # before it is parsed
    (constraint(choice=words(1_000)), LONG),
    (constraint(grammar='root ::= "' + "x" * 9_000 + '"'), LONG),
    (response_format({"enum": words(1_000)}), LONG),
    (response_format({"enum": words(3_000)}), LONG),
    # GHSA-87x5-vmc3-756j
    ({"prompt": ["a"] * 4, "max_tokens": 1}, PROMPTS),
    ({"prompt": [[5]] * 4, "max_tokens": 1}, PROMPTS),
    # GHSA-wpww-v874-ph2p
    ({"cache_salt": "s" * 9}, SALT),
    # GHSA-v5gm-qgmv-gc6c: the tiny model has no such token
    ({"stop_token_ids": [1000], "min_tokens": 2}, "stop_token_ids"),
    ({"allowed_token_ids": [1000]}, "allowed_token_ids"),
]
"""What passes a limit, or is not there, and what the refusal names."""
COUNTED = {"type": "array", "items": {"type": "integer"}}
TAKEN = [
    REGEX,
    constraint(json={"type": "string", "maxLength": 32_768}),
    constraint(json=COUNTED | {"maxItems": 200}),
    constraint(
        json={"type": "array", "items": COUNTED | {"maxItems": 200}, "maxItems": 200}
    ),
    constraint(json=json.dumps({"enum": words(600)})),
    constraint(choice=words(600)),
    constraint(regex="[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    {"prompt": [[5, 6]] * 3},
    {"prompt": list(range(5, 200))},
    {"cache_salt": "s" * 8},
]
"""What stays within the limits, and repeats as often as schemas in use do."""


@pytest.fixture(
    scope="module",
    params=[pytest.param("off", marks=pytest.mark.slow), "adaptive"],
)
def server(request, moe_model, tmp_path_factory):
    options = ("-dp", "2", "--data-parallel-balance", request.param)
    folder = tmp_path_factory.mktemp("server")
    options += ("--max-model-len", "4096")
    with Server(folder, moe_model, *options, environment=LIMITS) as server:
        assert server.ask(0, **GOOD | REGEX).status_code == 200
        yield server


def tokens(answer):
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["token_ids"]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_costs_too_much_is_refused_with_its_limit(server, number):
    change, name = REFUSED[number]
    expected = tokens(server.ask(1, **GOOD))
    answer = server.ask(0, **GOOD | change)
    assert answer.status_code == 400, answer.text
    assert name in answer.json()["error"]["message"]
    assert len(answer.text) < 1_000, "it is said in a sentence"
    for rank in (0, 1):
        assert tokens(server.ask(rank, **GOOD)) == expected


@pytest.mark.parametrize("announced", [True, False])
def test_a_body_is_refused_by_its_bytes(server, announced):
    body = json.dumps({"model": str(server.model), "prompt": "a" * 70_000}).encode()
    url, headers = server.url + "/v1/completions", {"content-type": "application/json"}
    data = body if announced else iter([body[:40_000], body[40_000:]])
    answer = direct("POST", url, data=data, headers=headers, timeout=60)
    assert answer.status_code == 413, answer.text
    assert BODY in answer.json()["error"]["message"]
    assert server.ask(0, **GOOD).status_code == 200


@pytest.mark.parametrize("name", ["mm_processor_kwargs", "media_io_kwargs"])
@pytest.mark.parametrize(
    ("path", "prompt"),
    [
        ("/v1/chat/completions", "messages"),
        ("/tokenize", "messages"),
        ("/v1/responses", "input"),
    ],
)
def test_no_request_says_how_media_are_read(server, path, prompt, name):
    """GHSA-h3rc-6mm3-gc2m, GHSA-gx7p-2j49-hfq4, GHSA-4m6g-h9mv-wqjc and -58v5-…"""
    message = {"role": "user", "content": "a"}
    body = {"model": str(server.model), prompt: [message]}
    answer = server.post(path, body | {name: {"video": {"num_frames": 4}}})
    assert answer.status_code == 400, answer.text
    assert name in answer.json()["error"]["message"]
    assert server.post(path, body).status_code == 200


def test_a_rank_and_a_size_that_there_are_not_are_refused(server):
    before = server.metric("vllm:generation_tokens_total")
    for rank in (-1, 2):
        assert server.ask(rank, **GOOD).status_code == 400
    answer = server.post("/scale_elastic_ep", {})
    assert answer.status_code == 400, answer.text
    assert "this server cannot be resized" in answer.text
    assert server.metric("vllm:generation_tokens_total") == before


@pytest.mark.parametrize("number", range(len(TAKEN)))
def test_what_is_within_the_limits_is_answered(server, number):
    assert server.ask(0, **GOOD | TAKEN[number]).status_code == 200


def test_all_at_once_beside_twenty_others(server):
    expected = tokens(server.ask(0, **GOOD))
    requests = [change for change, _ in REFUSED] + TAKEN
    with ThreadPoolExecutor(20 + len(requests)) as pool:
        hostile = [pool.submit(server.ask, 0, **GOOD | each) for each in requests]
        polite = [pool.submit(server.ask, i % 2, **GOOD) for i in range(20)]
        assert [tokens(each.result()) for each in polite] == [expected] * 20
        statuses = [each.result().status_code for each in hostile]
    assert statuses == [400] * len(REFUSED) + [200] * len(TAKEN)


def send_in_rounds(url, bodies, seconds):
    """One client, a process of its own: all at once, again when all are answered."""
    statuses = []
    headers = {"content-type": "application/json", "X-data-parallel-rank": "0"}

    def send(body):
        url_ = url + "/v1/completions"
        return direct("POST", url_, data=body, headers=headers, timeout=120).status_code

    with ThreadPoolExecutor(len(bodies)) as pool:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            statuses += pool.map(send, bodies)
    return statuses


@pytest.mark.slow
def test_a_minute_of_all_at_once_beside_twenty_others(server):
    """Says how long the others take, with and without; `-rP` shows it."""
    expected = tokens(server.ask(0, **GOOD))
    base = {"model": str(server.model), "ignore_eos": True} | GOOD
    requests = [change for change, _ in REFUSED] + TAKEN
    bodies = [json.dumps(base | each) for each in requests]

    def polite(ends):
        taken = []
        while (start := time.monotonic()) < ends:
            assert tokens(server.ask(**GOOD)) == expected
            taken.append(time.monotonic() - start)
            time.sleep(0.5)
        return taken

    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn) as other, ThreadPoolExecutor(20) as pool:
        for hostile, seconds in ((False, 20), (True, 60)):
            ends = time.monotonic() + seconds
            sent = other.submit(send_in_rounds, server.url, bodies, seconds * hostile)
            polites = [pool.submit(polite, ends) for _ in range(20)]
            taken = sorted(one for each in polites for one in each.result())
            statuses = sent.result()
            assert set(statuses) <= {200, 400}
            median, last = (taken[int(len(taken) * part)] for part in (0.5, 0.99))
            print(
                f"beside {len(statuses)} requests of the table: {len(taken)} answers, "
                f"median {median * 1000:.0f} ms, 99th of 100 {last * 1000:.0f} ms"
            )
