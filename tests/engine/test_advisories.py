"""Published vulnerabilities: what comes is refused, and others are served."""

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


def nested(depth, width):
    """A schema of few levels whose text is a power of its width."""
    if depth == 0:
        return {"type": "string"}
    return {
        "oneOf": [
            {
                "type": "object",
                "properties": {f"k{depth}_{i}": nested(depth - 1, width)},
            }
            for i in range(width)
        ]
    }


def constraint(**of):
    return {"structured_outputs": of}


def words(count):
    return [f"c{i:07d}" for i in range(count)]


LONG, MANY = "VLLM_MAX_GRAMMAR_BYTES", "VLLM_MAX_GRAMMAR_STATES"
COUNTED = {"type": "array", "items": {"type": "integer"}}
REFUSED = [
    # GHSA-rwxx-mrjm-wc2m, and schemas, grammars and choices with it.
    (constraint(regex="(" + "|".join(words(20_000)) + ")*"), MANY),
    (constraint(regex=r"(\p{L}|\p{N}){1,3000}"), MANY),
    (constraint(regex="((a{1,100}){1,100}){1,100}"), MANY),
    (constraint(json={"enum": words(100_000)}), LONG),
    (constraint(json=nested(6, 6)), LONG),
    (constraint(json=json.dumps(nested(6, 6))), LONG),
    (constraint(json=COUNTED | {"minItems": 1, "maxItems": 10**6}), MANY),
    (constraint(json={"type": "string", "maxLength": 10**9}), MANY),
    (constraint(json={"type": "string", "pattern": "a{1,30000}"}), MANY),
    (constraint(json={"const": "x" * 100_000}), MANY),
    (constraint(choice=words(50_000)), LONG),
    (constraint(choice=["x" * 100_000]), MANY),
    (constraint(grammar='root ::= "' + "x" * 100_000 + '"'), MANY),
    (constraint(grammar='root ::= ("a" | "b"){1,100000}'), MANY),
    (constraint(grammar="root ::= a{1,100000}" + " " * 30_000), MANY),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "n", "schema": nested(6, 6)},
            }
        },
        LONG,
    ),
    # GHSA-87x5-vmc3-756j
    ({"prompt": ["a"] * 20_000, "max_tokens": 1}, "VLLM_MAX_COMPLETION_PROMPTS"),
    ({"prompt": [[5]] * 20_000, "max_tokens": 1}, "VLLM_MAX_COMPLETION_PROMPTS"),
    # GHSA-wpww-v874-ph2p
    ({"cache_salt": "s" * 1025}, "VLLM_MAX_CACHE_SALT_LENGTH"),
]
"""What upstream 0.23.0 takes, and what the refusal names."""
TAKEN = [
    REGEX,
    constraint(json=nested(4, 4)),
    constraint(json=json.dumps({"enum": words(2_000)})),
    constraint(json=COUNTED | {"maxItems": 500}),
    constraint(choice=words(2_000)),
    {"prompt": [[5, 6]] * 3},
    {"prompt": list(range(5, 200))},
    {"cache_salt": "s" * 1024},
]
"""What stays within the limits."""


@pytest.fixture(
    scope="module",
    params=[pytest.param("off", marks=pytest.mark.slow), "adaptive"],
)
def server(request, moe_model, tmp_path_factory):
    options = ("-dp", "2", "--data-parallel-balance", request.param)
    folder = tmp_path_factory.mktemp("server")
    with Server(folder, moe_model, *options, "--max-model-len", "4096") as server:
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
    answer = server.post(path, body | {name: {"video": {"num_frames": -1}}})
    assert answer.status_code == 400, answer.text
    assert name in answer.json()["error"]["message"]
    assert server.post(path, body).status_code == 200


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


def test_a_negative_token_id_is_refused_by_a_pooling_model(dense_model, tmp_path):
    """GHSA-25q3-v2hm-8vpf"""
    options = ("--runner", "pooling", "--convert", "embed")
    with Server(tmp_path, dense_model, *options) as server:
        for path in ("/v1/embeddings", "/pooling"):
            for prompt, status in (([5, -7], 400), ([5, 6], 200)):
                body = {"model": str(dense_model), "input": prompt}
                answer = server.post(path, body)
                assert answer.status_code == status, answer.text


def test_prompt_logprobs_are_computed_where_a_connector_has_the_prefix(
    dense_model, tmp_path
):
    """GHSA-rhcx-5729-88vg"""
    connector = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "kv")},
    }
    options = ("--kv-transfer-config", json.dumps(connector), "--block-size", "32")
    body = {"prompt": list(range(5, 75)), "max_tokens": 2, "temperature": 0}
    with Server(tmp_path, dense_model, *options) as server:
        answers = [server.ask(**body, prompt_logprobs=0) for _ in range(2)]
        assert [each.status_code for each in answers] == [200, 200]
        first, second = (each.json()["choices"][0] for each in answers)
        assert len(first["prompt_logprobs"]) == 70
        assert first["prompt_logprobs"] == second["prompt_logprobs"]
        assert server.ask(**body).status_code == 200
        fetched = {"kv_transfer_params": {"do_remote_prefill": True}}
        for asked in ({"prompt_logprobs": 0}, {"echo": True, "logprobs": 0}):
            assert server.ask(**body, **asked, **fetched).status_code == 400
    assert "kv" in [each.name for each in tmp_path.iterdir()]
